"""What a recipe works with: its stage, and the services of the stage."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from forge_core.contracts.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core.contracts.arrays import FloatArray
    from forge_core.contracts.config import StageConfig
    from forge_core.contracts.context import BuildContext
    from forge_core.contracts.protocols import Dataset, Environment
    from forge_core.contracts.sections import TrainingSection
    from forge_core.contracts.step import Step
    from forge_core.contracts.types import Episode, Group, Sampling, Task, TrainSequence


T = TypeVar("T")


class ServiceMethod(Protocol):
    """``service.<method>``: a method of the service's component."""

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on one replica: the session's inside a session, else as ``routing`` says.

        Raises:
            RunFailed: no replica can answer, now or within the outage limit.
            ReplicaDied: the session's replica is gone.
            Exception: whatever the method raised; the replica lives on.
        """
        ...

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call it on all healthy replicas at once; results in the order of replicas.

        Raises:
            FanoutError: it failed on some; names each with its cause.
        """
        ...


class ServiceHandle(Protocol):
    """Replicas of one component: ``await service.<method>.route(...)`` calls any of its methods."""

    name: str

    def __getattr__(self, name: str) -> ServiceMethod: ...

    def session(self) -> AbstractAsyncContextManager[int]:
        """Keep every ``route`` inside the block on one replica. Yields the replica's index."""
        ...


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """How much a recipe samples at a time, and when.

    Args:
        groups: tasks of a rollout; each has one group.
        group_size: episodes sampled for each task.
        optimizer_steps: steps that a rollout is trained in.
        max_staleness: most policy versions that a trained token may lie behind: 0 samples when a
            rollout is asked for, k samples the next k rollouts meanwhile. A recipe that samples
            ahead publishes once for each rollout, after its last step.
        refused: whether a task whose prompt cannot be answered is left out, or fails the run.
        refused_key: the config key that says so, for the warning.
    """

    groups: int
    group_size: int
    optimizer_steps: int = 1
    max_staleness: int = 0
    refused: Literal["drop", "fail"] = "drop"
    refused_key: str = ""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What an optimizer step is trained on.

    Args:
        groups: judged, in the run's order of tasks.
        index: of the step among those that train this rollout, from 0.
        steps: how many do.
    """

    groups: Sequence[Group]
    index: int = 0
    steps: int = 1

    @property
    def episodes(self) -> list[Episode]:
        """Of all groups."""
        return [episode for group in self.groups for episode in group.episodes]

    @property
    def is_first(self) -> bool:
        """Whether this is its first step: record what is true of the rollout there."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether this is its last step: publish after it."""
        return self.index == self.steps - 1

    def part(self, items: Sequence[T]) -> list[T]:
        """This step's share of something that all its steps share evenly, in order."""
        begin, end = (len(items) * at // self.steps for at in (self.index, self.index + 1))
        return list(items[begin:end])


class RolloutSource(Protocol):
    """Where the groups of the steps come from."""

    async def take(self, step: Step) -> Rollout:
        """What the step is trained on. Records ``staleness/max`` and ``staleness/mean``, and with a
        new rollout ``prompts/dropped`` and, if sampled ahead, ``groups/dropped``.

        Raises:
            DataError: no prompt of the dataset can be answered.
        """
        ...


class RecipeContext(Protocol):
    """One stage of a run, as its recipe sees it. Services start when they are first asked for."""

    name: str
    """Of the stage."""
    config: StageConfig
    context: BuildContext
    """What the stage's components are built with."""
    model: Path
    """Folder with the weights that the stage starts from, in Hugging Face layout."""
    seed: int
    """Of the stage; derive your own with ``forge_core.derive_seed``."""
    total_steps: int
    """The target."""
    recipe_state: dict[str, Any]
    """State of the recipe's own as JSON-able values: what it carries from one step to a later one.
    Checkpoints have it, and a resume brings it back."""

    @property
    def version(self) -> int:
        """Policy version last published; -1 before the first."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's."""
        ...

    @property
    def dataset(self) -> Dataset:
        """The stage's tasks."""
        ...

    @property
    def eval_dataset(self) -> Dataset:
        """The held-out tasks."""
        ...

    @property
    def environment(self) -> Environment:
        """The stage's, with its deadline and retries."""
        ...

    @property
    def position(self) -> int:
        """Tasks taken so far: the place of the next one in the run's order."""
        ...

    def take(self, count: int) -> list[Task]:
        """The next tasks in the run's order, which goes on with a new epoch at its end."""
        ...

    def task_at(self, place: int) -> Task:
        """The task at a place of the run's order, without taking it."""
        ...

    def advance(self, count: int) -> None:
        """Count the next tasks as taken without reading them."""
        ...

    def sampling(self, **changes: Any) -> Sampling:
        """The config's ``sampling`` section with the model's stop tokens.

        Args:
            changes: fields of ``Sampling`` to replace.
        """
        ...

    def steps(self) -> AsyncIterator[Step]:
        """Yield the stage's steps that are still to do; keep record, score and checkpoints.

        Raises:
            RunInterrupted: a signal asked for it; a checkpoint was written first.
            RunFailed: the recipe makes more optimizer steps than its schedule has.
        """
        ...

    async def trainer(self) -> ServiceHandle:
        """The trainer, with the stage's weights or, after a resume, the checkpoint's."""
        ...

    async def generator(self) -> ServiceHandle:
        """The generator service, holding the trainer's current weights."""
        ...

    @property
    def versions(self) -> Mapping[str, int]:
        """Version last published of each trainer that generators take weights from; -1 before the
        first. ``trainer`` is the stage's own."""
        ...

    async def publish(self, trainer: str = "trainer") -> int:
        """Send a trainer's weights to every generator that takes them, proved by checksum.

        Args:
            trainer: the stage's, or the name of one of the recipe's own.

        Returns:
            the new policy version.
        """
        ...

    async def reference_logprobs(
        self, sequences: Sequence[TrainSequence], *, temperature: float = 1.0
    ) -> list[FloatArray]:
        """Logprob of every token under the weights the stage began with.

        Args:
            sequences: of token ids.
            temperature: logits are divided by it.

        Returns:
            one array for each sequence, as ``Trainer.logprobs``.
        """
        ...

    def rollouts(self, options: RolloutOptions) -> AbstractAsyncContextManager[RolloutSource]:
        """Sample episodes of the stage's tasks and judge them, inside a block::

            async with stage.rollouts(RolloutOptions(groups=8, group_size=4)) as rollouts:
                async for step in stage.steps():
                    rollout = await rollouts.take(step)

        A checkpoint keeps what is sampled ahead, and a rollout that was trained in part.

        Args:
            options: how much, and when.
        """
        ...

    async def replay_buffer(self, max_staleness: int) -> ServiceHandle:
        """The service that keeps groups until they are trained; with the checkpoint's, if resumed.

        Args:
            max_staleness: most policy versions that the oldest token of a group may lie behind the
                version it is trained on; a group that is older is dropped.
        """
        ...

    async def service(self, name: str) -> ServiceHandle:
        """A service that the recipe has declared (``services``), with its state after a resume; or
        the replicas of a section that a plugin has added (``forge_sections``), placed.

        It ends with the stage. Those of a section are built without loss and transport.

        Args:
            name: of the service or the section.

        Raises:
            UsageError: the config selects no component there.
        """
        ...

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """What the config's advantage estimator (section ``advantage``) says of one group.

        Args:
            rewards: of the episodes that are compared. [G]

        Returns:
            one finite number for each, in their order. [G]

        Raises:
            UsageError: the config selects no estimator.
            RunFailed: it raised, or returned something else; names the component.
        """
        ...

    def component(self, section: str) -> Any:
        """The component of a section that a plugin has added, built in this process.

        Args:
            section: its name.

        Raises:
            UsageError: the config selects no component there.
        """
        ...

    async def score(self, episodes: Sequence[Episode], *, held_out: bool = False) -> None:
        """Judge episodes with the config's rewards, then let plugins see (and change) them.

        Args:
            episodes: to judge.
            held_out: they are scored only, not trained on; plugins see which.
        """
        ...

    def warn(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Show a warning, and keep it in ``events.jsonl`` and the summary.

        Args:
            message: one line for a person.
            data: the same for programs.
        """
        ...

    def waiting(self, what: str, detail: str = "") -> AbstractContextManager[None]:
        """Name what a block waits for, so that a wait that takes long is reported."""
        ...


def steps_for(
    training: TrainingSection, tasks: int, dataset_length: int, *, optimizer_steps: int = 1
) -> int:
    """Optimizer steps of a stage.

    Args:
        training: of the config; ``steps`` counts optimizer steps.
        tasks: taken at a time.
        dataset_length: tasks of an epoch.
        optimizer_steps: that these tasks are trained in.

    Raises:
        UsageError: the config says neither ``steps`` nor ``num_epochs``.
    """
    if training.steps is not None:
        return training.steps
    if training.num_epochs is None:
        raise UsageError("training.steps: give steps or num_epochs, so that the run has a target")
    return max(1, math.ceil(training.num_epochs * dataset_length / tasks)) * optimizer_steps
