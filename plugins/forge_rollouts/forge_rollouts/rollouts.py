"""The groups that a step is trained on: sampled in turn or ahead, for one or several steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from forge_core import DataError, Group, PromptRefused, Rollout, Task, derive_seed
from forge_rollouts.episodes import rollout_group

if TYPE_CHECKING:
    from forge_core import RecipeContext, RolloutOptions, ServiceHandle, Step


class Source(Protocol):
    """Where the groups of a rollout come from."""

    async def groups(self, step: Step) -> dict[int, Group]:
        """The next groups, judged, by their places in the run's order of tasks."""
        ...


@asynccontextmanager
async def rollouts(
    stage: RecipeContext, options: RolloutOptions, held: Mapping[int, Group]
) -> AsyncIterator[Rollouts]:
    """Sample inside the block; what is under way when it ends is cancelled.

    Args:
        stage: whose tasks, environment and rewards they are.
        options: how much is sampled, and when.
        held: groups of a rollout that an earlier process has trained in part, by place.
    """
    sampler = Sampler(stage, await stage.generator(), options)
    if options.max_staleness == 0:
        yield Rollouts(stage, InTurn(sampler), options.optimizer_steps, held)
        return
    from forge_rollouts.ahead import sampling_ahead

    async with sampling_ahead(sampler, options.max_staleness) as ahead:
        yield Rollouts(stage, ahead, options.optimizer_steps, held)


class Rollouts:
    """Gives each optimizer step the groups that it is trained on.

    Args:
        stage: of the run.
        source: samples them.
        optimizer_steps: for which a rollout is kept.
        held: groups of a rollout that an earlier process has trained in part, by place.
    """

    def __init__(
        self,
        stage: RecipeContext,
        source: Source,
        optimizer_steps: int,
        held: Mapping[int, Group],
    ) -> None:
        self._stage = stage
        self._source = source
        self._steps = optimizer_steps
        self._held = dict(held)

    async def take(self, step: Step) -> Rollout:
        """What the step is trained on, with ``staleness/max`` and ``staleness/mean`` in its record:
        how many versions the weights that sampled a token lie behind those about to be trained."""
        index = (step.number - 1) % self._steps
        if index == 0 or not self._held:
            self._held = await self._source.groups(step)
        groups = [group for _, group in sorted(self._held.items()) if group.episodes]
        step.record(_staleness(groups, self._stage.version))
        return Rollout(groups=groups, index=index, steps=self._steps)

    def held(self, done: int) -> dict[int, Group]:
        """The groups, by place, that later steps are trained on.

        Args:
            done: steps of the stage that are done.
        """
        return {} if done % self._steps == 0 else self._held


class Sampler:
    """Samples and judges groups.

    Args:
        stage: whose tasks, environment and rewards they are.
        generator: of the stage.
        options: how much is sampled.
    """

    def __init__(
        self, stage: RecipeContext, generator: ServiceHandle, options: RolloutOptions
    ) -> None:
        self.stage = stage
        self.options = options
        self._generator = generator
        self._sampling = stage.sampling()
        self._refusal = ""
        """The first refused prompt, in words."""

    async def sample(self, task: Task, place: int) -> Group:
        """One group, not judged yet; without episodes if its prompt is refused and dropped.

        Args:
            task: its task.
            place: of the task in the run's order; its seed depends on nothing else.

        Raises:
            PromptRefused: the prompt cannot be answered, and such tasks are not to be dropped.
        """
        rollouts_before, index = divmod(place, self.options.groups)
        try:
            return await rollout_group(
                task,
                self.stage.environment,
                self.options.group_size,
                generate=self._generator.generate.route,
                tokenizer=self.stage.tokenizer,
                sampling=self._sampling,
                seed=derive_seed(self.stage.seed, "rollout", rollouts_before + 1, index),
            )
        except PromptRefused as error:
            if self.options.refused == "fail":
                raise
            if not self._refusal:
                self._refusal = str(error)
                key = f" ({self.options.refused_key})" if self.options.refused_key else ""
                self.stage.warn(
                    f"{error}; such tasks are left out{key} and counted as prompts/dropped",
                    {"task": task.id},
                )
            return Group(task, [])

    def check_refused(self, refused: int, *, answered: int) -> None:
        """Make sure that a rollout finds prompts that can be answered.

        Args:
            refused: tasks of the rollout whose prompts were refused.
            answered: its other tasks.

        Raises:
            DataError: a whole epoch was refused.
        """
        # Any 2 x length places of the order in a row have all tasks of an epoch among them.
        if not answered and refused >= 2 * len(self.stage.dataset):
            raise none_answerable(len(self.stage.dataset), self._refusal)


class InTurn:
    """Samples when a step asks: strictly on-policy."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._stage = sampler.stage

    async def groups(self, step: Step) -> dict[int, Group]:
        wanted = self._sampler.options.groups
        groups: dict[int, Group] = {}
        refused = 0
        with step.timed("generate"):
            while len(groups) < wanted:
                first, count = self._stage.position, wanted - len(groups)
                sampled = await asyncio.gather(
                    *(
                        self._sampler.sample(task, place)
                        for place, task in enumerate(self._stage.take(count), start=first)
                    )
                )
                groups |= {
                    place: group for place, group in enumerate(sampled, first) if group.episodes
                }
                refused += sum(not group.episodes for group in sampled)
                self._sampler.check_refused(refused, answered=len(groups))
        step.record({"prompts/dropped": refused})
        ordered = list(groups.values())
        with step.timed("reward"):
            await self._stage.score([episode for group in ordered for episode in group.episodes])
        step.rate("generated_tokens", completion_tokens(ordered), over="generate")
        return groups


def completion_tokens(groups: Sequence[Group]) -> int:
    """Tokens that the policy sampled in all of them."""
    return sum(episode.completion_length for group in groups for episode in group.episodes)


def none_answerable(tasks: int, first: str) -> DataError:
    """What ends a run whose dataset has no prompt that can be answered.

    Args:
        tasks: how many there are.
        first: what is wrong with one of them.
    """
    return DataError(f"dataset: none of the {tasks} prompts can be answered; the first: {first}")


def _staleness(groups: Sequence[Group], current_version: int) -> dict[str, float]:
    versions = [
        turn.completion.versions
        for group in groups
        for episode in group.episodes
        for turn in episode.turns
        if turn.completion is not None and len(turn.completion.versions)
    ]
    sampled = sum([len(each) for each in versions])
    ends = [(int(each[0]), int(each[-1])) for each in versions]  # versions never decrease
    oldest = min((first for first, _ in ends), default=current_version)
    total = sum(
        len(each) * first if first == last else int(each.sum(dtype="int64"))
        for each, (first, last) in zip(versions, ends, strict=True)
    )
    return {
        "staleness/max": current_version - oldest,
        "staleness/mean": (current_version * sampled - total) / sampled if sampled else 0,
    }
