"""The groups of a step, sampled when it asks for them: strictly on-policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forge_core import Group, Task
from forge_core.rollout import rollout_group
from forge_core.seeding import derive_seed

if TYPE_CHECKING:
    from forge_core.run.stage import Stage
    from forge_core.run.step import Step
    from forge_core.services.service import Service


class Rollouts:
    """Samples and judges groups.

    Args:
        stage: whose tasks, environment and rewards they are.
        policy: the generator service.
        group_size: episodes of a group.
        per_step: groups of a step.
    """

    def __init__(self, stage: Stage, policy: Service, *, group_size: int, per_step: int) -> None:
        self.stage = stage
        self.per_step = per_step
        self._policy = policy
        self._group_size = group_size
        self._sampling = stage.sampling()

    async def groups(self, step: Step) -> list[Group]:
        """The step's groups, judged, in the order of its tasks."""
        tasks = self.stage.take(self.per_step)
        with step.timed("generate"):
            groups = await asyncio.gather(
                *(self.sample(task, step.number, index) for index, task in enumerate(tasks))
            )
        with step.timed("reward"):
            await self.stage.score([episode for group in groups for episode in group.episodes])
        step.rate("generated_tokens", completion_tokens(groups), over="generate")
        return groups

    async def sample(self, task: Task, step: int, index: int) -> Group:
        """One group, not judged yet.

        Args:
            task: its task.
            step: number of the step it will be trained in.
            index: of the task in that step.
        """
        return await rollout_group(
            task,
            self.stage.environment,
            self._group_size,
            generate=self._policy.generate.route,
            tokenizer=self.stage.tokenizer,
            sampling=self._sampling,
            seed=derive_seed(self.stage.seed, "rollout", step, index),
        )


def completion_tokens(groups: list[Group]) -> int:
    """Tokens that the policy sampled in all of them."""
    return sum(episode.completion_length for group in groups for episode in group.episodes)
