"""What each family must do. A component is any object with these methods; nothing is inherited.

Methods of generators and trainers are called through services, which may live in other processes:
arguments and results are the plain data of ``types.py``. Any method may be ``async``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from forge_core.contracts.arrays import FloatArray
    from forge_core.contracts.config import StageConfig
    from forge_core.contracts.loss import LossBatch, LossOutput, ModelOutputs
    from forge_core.contracts.recipe import RecipeContext
    from forge_core.contracts.records import Event, RunInfo, StepRecord, Summary
    from forge_core.contracts.services import ReplicaSpec

from forge_core.contracts.types import (
    Completion,
    CompletionPart,
    Episode,
    FinishReason,
    Prompt,
    Response,
    RewardResult,
    RewardSample,
    Sampling,
    StepResult,
    Task,
    TrainSequence,
    WeightManifest,
)

RewardValue = float | RewardResult
"""What a reward says of one sample."""


@runtime_checkable
class Generator(Protocol):
    """Samples completions. Serves many ``generate`` calls at once; cancelling one frees its row."""

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        """Sample ``sampling.n`` completions of a prompt of token ids.

        Raises:
            NoRoom: the prompt leaves no room in the window. An episode of several turns that gets
                there ends as truncated; any other error ends the run.
            PromptRefused: the prompt is empty.
            DataError: it holds an unknown token, or the sampling is out of its range.
            ReplicaDied: the engine is elsewhere and cannot be reached now. The service builds the
                replica again until ``outage_limit`` is over, and repeats the call.
        """
        ...

    async def update_weights(self, manifest: WeightManifest) -> WeightManifest:
        """Load that version from the transport and say what is now held.

        Requests in flight go on with the new weights; their later tokens carry the new version.
        The returned checksum is computed from the weights the generator holds, not copied.

        Raises:
            UsageError: it takes no weights (``GeneratorComponent(takes_weights=False)``).
        """
        ...

    async def stats(self) -> Mapping[str, float]:
        """Counters since the start: ``tokens`` generated, ``requests`` finished, and so on."""
        ...

    async def close(self) -> None:
        """Give everything back. Called once, also after a failure."""
        ...


@runtime_checkable
class StreamingGenerator(Generator, Protocol):
    """A generator that can hand out a completion while it is being sampled. No run needs it;
    commands in which people talk with a model show answers as they come where it is there."""

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[CompletionPart]:
        """Sample one completion; its parts add up to what ``generate`` returns.

        Closing the iterator before its end cancels the completion and frees its row.

        Raises:
            DataError: as ``generate``; also if ``sampling.n`` is not 1.
        """
        ...


@runtime_checkable
class ServingGenerator(Generator, Protocol):
    """A generator that can have an OpenAI-compatible address of its own; its component says
    ``serves=True`` and its settings have ``serve``: null, or ``host``, ``port``, ``api_key_file``
    and ``api_key_env``."""

    async def serve(self) -> str | None:
        """Open the address that the settings ask for, if it is not open; say what it is.

        It answers with the weights that are held, also while ``update_weights`` changes them, until
        ``close``. Every answer has the policy version in the header ``x-forge-policy-version``.

        Returns:
            The ``base_url`` for clients; None if the settings ask for no address.

        Raises:
            ConfigError: the address is not available.
        """
        ...


@runtime_checkable
class Trainer(Protocol):
    """Holds the policy's weights and optimizer. One call at a time."""

    async def train_step(
        self, micro_batches: Sequence[Sequence[TrainSequence]], *, temperature: float = 1.0
    ) -> StepResult:
        """One optimizer step over all micro-batches.

        The gradient is that of (sum of the loss over every micro-batch and rank) / (its count), so
        the way of splitting changes nothing but rounding. A trainer may split further.

        Args:
            micro_batches: what to train on.
            temperature: logits are divided by it. The one that the sequences were sampled at, so
                that logprobs can be compared with the sampler's; greater than 0.

        Raises:
            RunFailed: the loss or the gradient is not finite; weights are left as they were.
        """
        ...

    async def logprobs(
        self,
        sequences: Sequence[TrainSequence],
        *,
        reference: bool = False,
        temperature: float = 1.0,
    ) -> list[FloatArray]:
        """Logprob of every token under the current weights or the reference's, at a temperature.

        Returns one array for each sequence, as long as its tokens, 0 where ``loss_mask`` is False.
        """
        ...

    async def hold_reference(self) -> None:
        """Keep a frozen copy of the weights as they are now, for ``logprobs(reference=True)``."""
        ...

    async def publish(self, version: int) -> WeightManifest:
        """Put the current weights on the transport under Hugging Face names.

        Raises:
            WeightsNotFinite: a weight is infinite or NaN; nothing is published.
        """
        ...

    async def save(self, folder: Path) -> None:
        """Write weights in Hugging Face layout, optimizer, scheduler and RNG state.

        Raises:
            WeightsNotFinite: a weight is infinite or NaN.
        """
        ...

    async def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote; the next step is the one that would have followed."""
        ...

    async def close(self) -> None:
        """Give everything back. Called once, also after a failure."""
        ...


@runtime_checkable
class Loss(Protocol):
    """A pure function of logprobs over the trained tokens only: no padding, no prompt, no mask.

    Its ``LossComponent`` says what it needs beside logprobs: fields of the batch (``advantages``,
    ``sampler_logprobs``, ``reference_logprobs``, ...) and outputs of the policy (``entropy``,
    ``top_logprobs:K``, ``log_softmax``, ``hidden_states``, ``values``).

    One that needs ``log_softmax`` is a ``ChunkedLoss``.
    """

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        """Return a sum and a count, never a mean.

        Args:
            logprobs: of the N trained tokens, with gradient. [N]
            batch: fields for the same tokens, and which sequence each belongs to.
            outputs: what else it needs of the policy, for the same tokens.
        """
        ...


class ChunkedLoss(Loss, Protocol):
    """A loss of whole next-token distributions. They are made for a chunk of tokens at a time, and
    again in the backward pass, so that those of all tokens never exist at once."""

    def terms(self, log_softmax: torch.Tensor, batch: LossBatch) -> torch.Tensor:
        """Return what the loss needs of n of the N tokens' distributions.

        Called once or twice for each chunk. Gradients flow through ``log_softmax`` alone, and only
        from what ``__call__`` makes of ``outputs.terms``. It must not write into its arguments.

        Args:
            log_softmax: natural-log probabilities of the V tokens of the vocabulary. [n, V] float32
            batch: the same n tokens; sequences and groups may have others too.

        Returns:
            a number or K numbers for each token. [n] or [n, K]
        """
        ...


@runtime_checkable
class OptimizerFactory(Protocol):
    """Makes the optimizer of a model: a class of ``torch.optim`` with its settings filled in, or a
    function like one."""

    def __call__(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make the optimizer.

        What it keeps is in its ``state_dict``, which trainers save and restore; its settings are in
        ``param_groups`` under their names, so that a resumed run can be given others.

        Args:
            groups: parameter groups as every ``torch.optim.Optimizer`` takes them. ``params`` are
                the trained weights, ``lr`` is set before each step from ``training.learning_rate``
                and the schedule, and norms and biases have ``weight_decay`` 0.

        Raises:
            UsageError: it does not work for these weights.
        """
        ...


@runtime_checkable
class Schedule(Protocol):
    """The course of the learning rate after warmup: a pure function, so that a resumed run goes on
    where it was."""

    def __call__(self, step: int, steps: int | None) -> float:
        """Factor of ``training.learning_rate`` for an optimizer step; finite and at least 0.

        Args:
            step: optimizer steps since the end of warmup, from 0; ``steps`` once training is over.
            steps: that there are after warmup, at least 1. None where the end is not known, which
                happens only to schedules whose component says ``ends=False``.
        """
        ...


@runtime_checkable
class AdvantageEstimator(Protocol):
    """How much better each episode of a group did than the group makes one expect: a pure function
    of the group's rewards."""

    def __call__(self, rewards: Sequence[float]) -> Sequence[float]:
        """Advantage of each episode, in their order.

        Args:
            rewards: of the episodes of one task, finite; at least one, and fewer than
                ``group_size`` where episodes were left out. [G]

        Returns:
            finite numbers that do not depend on the order of the others. Where all are 0, the
            group has nothing to teach. [G]
        """
        ...


@runtime_checkable
class Reward(Protocol):
    """A pure, picklable function. Runs in a process of its own under a deadline.

    The name of its parameter says what one call judges: ``sample``, ``samples`` (``BatchReward``)
    or ``group`` (``GroupReward``). Calls of an ``async`` function are made at the same time.
    """

    def __call__(self, sample: RewardSample) -> RewardValue | Awaitable[RewardValue]: ...


@runtime_checkable
class BatchReward(Protocol):
    """A reward that judges many samples, of different tasks, in one call."""

    def __call__(
        self, samples: Sequence[RewardSample]
    ) -> Sequence[RewardValue] | Awaitable[Sequence[RewardValue]]:
        """Return a reward for each sample, in their order."""
        ...


@runtime_checkable
class GroupReward(Protocol):
    """A reward that judges the samples of one task's group together, to compare them."""

    def __call__(
        self, group: Sequence[RewardSample]
    ) -> Sequence[RewardValue] | Awaitable[Sequence[RewardValue]]:
        """Return a reward for each sample, in their order."""
        ...


AnyReward = Reward | BatchReward | GroupReward


class Interaction(Protocol):
    """One episode of an environment, from its prompt to its end.

    One that holds something (a container, a connection) also has ``async close()``. It is called
    once, at the episode's end, also after a failure and where the run is cancelled.

    Where several agents take part, ``agent`` names the one that ``prompt`` is for; a ``Response``
    hands the turn to another. All are the policy that is trained, each with a conversation and an
    ``Episode`` of its own.
    """

    prompt: Prompt

    async def respond(self, completion: str, finish_reason: FinishReason) -> Response | str | None:
        """Answer a completion: text is ``Response(text)``, None ``Response(done=True)``.

        Args:
            completion: its text, without special tokens.
            finish_reason: how it ended. Unless it is ``stop`` the episode is over, whatever is
                answered.
        """
        ...


@runtime_checkable
class Environment(Protocol):
    """Turns tasks into interactions. ``max_turns`` bounds the completions of an episode, those of
    all agents together.

    All episodes of a group are started with the same seed, unless the environment says
    ``shared_seed = False``.
    """

    max_turns: int

    async def start(self, task: Task, seed: int) -> Interaction:
        """Begin an episode; deterministic in (task, seed)."""
        ...


class ValueTrainer(Trainer, Protocol):
    """A trainer that gives ``values``: it makes a value head where its loss needs them, and trains,
    saves and resumes it with the policy. It publishes the policy alone."""

    async def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the value head's numbers for the trained tokens, 0 elsewhere, without a gradient.

        Args:
            sequences: S sequences; fields are ignored.

        Returns:
            one array for each sequence. [T] each, float32

        Raises:
            UsageError: the loss needs no values.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """Carries weights from the trainer to generators. Both ends build one on the same channel.

    Of a trainer with several ranks, rank 0 publishes whole tensors. A transport whose class says
    ``sharded = True`` takes every rank's part: ``publish`` is called on each rank with distributed
    tensors (``DTensor``) of which it has a shard, and whole tensors, of which the lowest rank's
    are taken. All ranks get the same manifest, whose checksum is that of the whole tensors.
    """

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        """Take a copy of the weights under a version higher than any before. Atomic to readers.

        Raises:
            ValueError: the version is not higher than the last.
        """
        ...

    def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Stream the tensors of a version, in the order they were published.

        A yielded tensor is only valid until the next one is asked for: copy it into place.

        Raises:
            KeyError: no such version, or it was dropped.
        """
        ...

    async def drop(self, version: int) -> None:
        """Forget a version; a fetch under way still ends well. Unknown versions are ignored."""
        ...

    async def versions(self) -> list[int]:
        """Versions that can be fetched, lowest first."""
        ...

    async def close(self) -> None:
        """Give everything back. The last end to close leaves nothing on the host."""
        ...


@runtime_checkable
class Dataset(Protocol):
    """A finite, indexable set of tasks. The order of a run is the kernel's (seeded, resumable)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...


@runtime_checkable
class Recipe(Protocol):
    """Drives one stage of a run.

    Its ``RecipeComponent`` says which sections it requires and which fields it provides.

    A recipe that leaves tasks out may also have ``usable_tasks(config, dataset) -> int``: how many
    it takes in an epoch. ``plan`` is then given that number. One that needs more services than the
    stage has (a critic, a teacher, a second policy) has ``services(config) -> {name:
    RecipeService(...)}``, and asks for them with ``await stage.service(name)``.
    """

    def plan(self, config: StageConfig, dataset_length: int) -> int:
        """Check the stage's config and say its optimizer steps, before anything is started.

        ``forge_core.steps_for`` does the arithmetic of ``steps`` and ``num_epochs``.

        Raises:
            UsageError: this recipe cannot work with that config; names the key.
        """
        ...

    async def run(self, stage: RecipeContext) -> None:
        """Drive ``stage.steps()`` to its end; raise if the target cannot be reached.

        Make one optimizer step in each step of the stage: the learning-rate schedule counts them,
        and more stop the run. A recipe that samples from what it trains publishes after training.
        """
        ...


@runtime_checkable
class Tracker(Protocol):
    """Hears of everything a run does. Called in the controller's process, in order, each tracker
    in a thread of its own, so that one that raises or hangs does not touch the run.

    A call that fails on a connection is made again. A class that says ``record = True`` is part of
    the run's own record: it is called before the run goes on, and fails it by raising.
    """

    def start(self, run: RunInfo) -> None: ...

    def step(self, record: StepRecord) -> None: ...

    def event(self, event: Event) -> None: ...

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None: ...

    def finish(self, summary: Summary) -> None: ...


class Runtime(Protocol):
    """Where replicas live. The kernel's services are written once, over these three calls."""

    async def spawn(self, spec: ReplicaSpec) -> Replica:
        """Start one replica and wait until its component is built.

        Raises:
            UsageError: this runtime cannot place it so (names what could).
        """
        ...

    async def close(self) -> None:
        """Stop what is left. Leaves no process behind."""
        ...


class Replica(Protocol):
    """One running copy of a component."""

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method. Its exception is raised here.

        Raises:
            ReplicaDied: the process is gone; no answer will come.
        """
        ...

    async def wait_dead(self) -> str:
        """Return the cause once the replica is dead. Never returns while it lives."""
        ...

    async def stop(self) -> None:
        """Close the component and end its process. Safe to call twice and on a dead replica."""
        ...
