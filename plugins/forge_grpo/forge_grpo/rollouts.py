"""The groups of a step, sampled when it asks for them: strictly on-policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from forge_core import Group, PromptRefused, Task, derive_seed
from forge_core.rollout import rollout_group
from forge_grpo.prompt_check import none_answerable

if TYPE_CHECKING:
    from forge_core import RecipeContext, ServiceHandle, Step


class Rollouts:
    """Samples and judges groups.

    Args:
        stage: whose tasks, environment and rewards they are.
        generator: the generator service.
        group_size: episodes of a group.
        per_step: groups of a step.
        overlong_prompts: whether tasks whose prompt cannot be answered are left out.
    """

    def __init__(
        self,
        stage: RecipeContext,
        generator: ServiceHandle,
        *,
        group_size: int,
        per_step: int,
        overlong_prompts: Literal["drop", "fail"] = "drop",
    ) -> None:
        self.stage = stage
        self._drop = overlong_prompts == "drop"
        self._refusal = ""
        """The first refused prompt, in words."""
        self.per_step = per_step
        self._generator = generator
        self._group_size = group_size
        self._sampling = stage.sampling()

    async def groups(self, step: Step) -> list[Group]:
        """The step's groups, judged, in the order of its tasks."""
        groups: list[Group] = []
        refused = 0
        with step.timed("generate"):
            while len(groups) < self.per_step:
                first, count = self.stage.position, self.per_step - len(groups)
                sampled = await asyncio.gather(
                    *(
                        self.sample(task, place)
                        for place, task in enumerate(self.stage.take(count), start=first)
                    )
                )
                groups += [group for group in sampled if group.episodes]
                refused += sum(not group.episodes for group in sampled)
                self.check_refused(refused, answered=len(groups))
        step.record({"prompts/dropped": refused})
        with step.timed("reward"):
            await self.stage.score([episode for group in groups for episode in group.episodes])
        step.rate("generated_tokens", completion_tokens(groups), over="generate")
        return groups

    async def sample(self, task: Task, place: int) -> Group:
        """One group, not judged yet; without episodes if its prompt is refused and dropped.

        Args:
            task: its task.
            place: of the task in the run's order; its seed depends on nothing else.

        Raises:
            PromptRefused: the prompt cannot be answered, and such tasks are not to be dropped.
        """
        steps_before, index = divmod(place, self.per_step)
        try:
            return await rollout_group(
                task,
                self.stage.environment,
                self._group_size,
                generate=self._generator.generate.route,
                tokenizer=self.stage.tokenizer,
                sampling=self._sampling,
                seed=derive_seed(self.stage.seed, "rollout", steps_before + 1, index),
            )
        except PromptRefused as error:
            if not self._drop:
                raise
            if not self._refusal:
                self._refusal = str(error)
                self.stage.warn(
                    f"{error}; such tasks are left out (recipe.overlong_prompts) and counted as "
                    "prompts/dropped",
                    {"task": task.id},
                )
            return Group(task, [])

    def check_refused(self, refused: int, *, answered: int) -> None:
        """Make sure that a step finds prompts that can be answered.

        Args:
            refused: tasks of the step whose prompts were refused.
            answered: its other tasks.

        Raises:
            DataError: a whole epoch was refused.
        """
        # Any 2 x length places of the order in a row have all tasks of an epoch among them.
        if not answered and refused >= 2 * len(self.stage.dataset):
            raise none_answerable(len(self.stage.dataset), self._refusal)


def completion_tokens(groups: list[Group]) -> int:
    """Tokens that the policy sampled in all of them."""
    return sum(episode.completion_length for group in groups for episode in group.episodes)
