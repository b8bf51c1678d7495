"""The frame of every trainer: what it refuses, and what a training step consists of.

A trainer inherits ``TrainerFrame`` and says how its model is run and its optimizer makes a step.
One of a single process inherits ``one_process.OneProcessTrainer``, which knows most of that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import torch

from forge_core import (
    BuildContext,
    FloatArray,
    Loss,
    OutputNeeds,
    RunFailed,
    StepResult,
    TrainSequence,
    Transport,
    UsageError,
    WeightManifest,
    WeightsNotFinite,
)
from forge_tensors.finite import first_not_finite
from forge_tensors.loss_step import LossStep
from forge_tensors.metric_sums import MetricSums
from forge_tensors.schedule import LearningRate

P = TypeVar("P")
T = TypeVar("T")

StepNumbers = tuple[
    float, float, str | None, Mapping[str, tuple[float, float]], Mapping[str, float]
]
"""Of one rank: loss, count, what is wrong with them, sums and maxima of metrics."""


class TrainerFrame(ABC, Generic[P]):
    """Implements ``forge_core.Trainer`` around a policy of type ``P``.

    A step in which the loss counts nothing (no trained token at all) changes neither weights nor
    optimizer; it still is a step of the schedule.

    A trainer of several ranks is called with the same arguments on each, trains on its share of the
    sequences, and returns the same result.

    Args:
        context: what the trainer is built with.

    Raises:
        UsageError: there is no model folder, or a schedule has no end.
    """

    name: ClassVar[str]
    """Of the component, for messages."""

    device: torch.device
    """That of the logprobs."""

    policy: P
    reference: P | None = None

    def __init__(self, context: BuildContext) -> None:
        self.learning_rate = LearningRate(context)
        if context.model.path is None:
            raise UsageError(f"model.path: trainer {self.name} needs a model folder")
        self.folder = context.model.path
        self.training = context.training
        self.loss: Loss | None = context.loss.build(context) if context.loss else None
        self.needs = context.loss.outputs if context.loss else OutputNeeds()
        self.transport: Transport | None = (
            context.transport.build(context) if context.transport else None
        )
        torch.manual_seed(context.seed)

    @property
    @abstractmethod
    def steps_done(self) -> int:
        """Steps of the schedule, also those of before a resume."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """The learning rate of the next step."""

    @abstractmethod
    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """What is trained; of several ranks, this one's part."""

    @abstractmethod
    def check_sequences(self, sequences: Sequence[TrainSequence]) -> None:
        """Raises UsageError or DataError for a sequence that the model cannot be given."""

    @abstractmethod
    def accumulate(
        self, step: LossStep, micro_batches: Sequence[Sequence[TrainSequence]], temperature: float
    ) -> None:
        """Add up the gradients of the summed loss, and in ``step`` what the loss returns."""

    @abstractmethod
    def score(
        self, policy: P, sequences: Sequence[TrainSequence], temperature: float
    ) -> list[FloatArray]:
        """Logprobs of the trained tokens, 0 elsewhere, without a gradient. [T] each"""

    @abstractmethod
    def average_gradients(self, count: float) -> float | None:
        """Divide the gradients by a count and clip them to ``training.max_grad_norm``.

        Returns:
            norm of the whole gradient after the division and before clipping; None: there are no
            gradients.
        """

    @abstractmethod
    def apply_gradients(self, rate: float) -> None:
        """Let the optimizer change the weights."""

    @abstractmethod
    def zero_gradients(self) -> None:
        """Drop the gradients."""

    @abstractmethod
    def finish_step(self) -> None:
        """Move the schedule on by one step."""

    @abstractmethod
    async def send(self, transport: Transport, version: int) -> WeightManifest:
        """Publish the policy's weights under Hugging Face names."""

    def of_all_ranks(self, value: T) -> Sequence[T]:
        """What every rank gives. A collective; one rank is alone."""
        return [value]

    def over_batch(self, numbers: StepNumbers) -> Sequence[StepNumbers]:
        """Those of every rank that has sequences of its own. A collective; one rank is alone."""
        return [numbers]

    async def train_step(
        self, micro_batches: Sequence[Sequence[TrainSequence]], *, temperature: float = 1.0
    ) -> StepResult:
        if self.loss is None:
            raise UsageError(
                f"loss.use: trainer {self.name} was built without a loss and cannot train"
            )
        sequences = [sequence for batch in micro_batches for sequence in batch]
        self.check_sequences(sequences)
        step = LossStep(self.loss, self.device, self.needs)
        rate = self.rate
        try:
            self.accumulate(step, micro_batches, temperature)
            total, count, metrics = self._totals(step)
            norm = self._update(total, count, rate)
        finally:
            self.zero_gradients()
        self.finish_step()
        return StepResult(
            loss=total / count if count else 0.0,
            grad_norm=norm,
            learning_rate=rate,
            tokens=sum(len(sequence.tokens) for sequence in sequences),
            trained_tokens=sum(int(sequence.loss_mask.sum()) for sequence in sequences),
            metrics=metrics,
        )

    async def logprobs(
        self,
        sequences: Sequence[TrainSequence],
        *,
        reference: bool = False,
        temperature: float = 1.0,
    ) -> list[FloatArray]:
        policy = self.reference if reference else self.policy
        if policy is None:
            raise UsageError("logprobs of the reference were asked for before hold_reference")
        self.check_sequences(sequences)
        bare = [TrainSequence(each.tokens, each.loss_mask) for each in sequences]
        return self.score(policy, bare, temperature)

    async def publish(self, version: int) -> WeightManifest:
        if self.transport is None:
            raise UsageError(f"transport.use: trainer {self.name} was built without a transport")
        self.check_weights()
        return await self.send(self.transport, version)

    async def close(self) -> None:
        if self.transport is not None:
            await self.transport.close()

    def check_weights(self) -> None:
        """Before they are published or saved. A collective: every rank stops before the next one.

        Raises:
            WeightsNotFinite: names the tensor.
        """
        if trouble := next(filter(None, self.of_all_ranks(self._bad_weight())), None):
            raise self._not_finite(trouble)

    def _totals(self, step: LossStep) -> tuple[float, float, dict[str, float]]:
        """Loss, count and mean metrics of all ranks.

        Raises:
            RunFailed: a rank's loss is not finite.
        """
        losses, metrics = step.losses, step.metrics
        mine = (losses.total, losses.count, losses.trouble(), *metrics.numbers())
        total = count = 0.0
        merged = MetricSums()
        for rank_total, rank_count, trouble, sums, maxima in self.over_batch(mine):
            if trouble:
                raise self._failed(trouble)
            total, count = total + rank_total, count + rank_count
            for name, (value, weight) in sums.items():
                merged.add(name, value, weight)
            for name, value in maxima.items():
                merged.add_max(name, value)
        return total, count, merged.means()

    def _update(self, total: float, count: float, rate: float) -> float:
        """Turn the gradient of the summed loss into that of its mean, clip it and step.

        Returns:
            norm of the whole gradient before clipping.

        Raises:
            RunFailed: it is not finite; weights and optimizer are left as they were.
        """
        norm = self.average_gradients(count) if count else None
        if norm is None:
            return 0.0
        if not math.isfinite(norm):
            bad = self._first_bad_gradient()
            raise self._failed(f"{bad} (the loss is finite: {total / count:g})")
        self.apply_gradients(rate)
        return norm

    def _bad_weight(self) -> str | None:
        return first_not_finite((name, _local(value)) for name, value in self.named_parameters())

    def _not_finite(self, trouble: str) -> WeightsNotFinite:
        return WeightsNotFinite(
            f"after step {self.steps_done}: {trouble}", component=f"trainer {self.name}"
        )

    def _failed(self, trouble: str) -> RunFailed:
        if bad := self._bad_weight():  # of a step before, and the cause of this trouble
            return self._not_finite(bad)
        return RunFailed(
            f"step {self.steps_done + 1}: {trouble}; the weights are as they were before it",
            component=f"trainer {self.name}",
        )

    def _first_bad_gradient(self) -> str:
        for name, parameter in self.named_parameters():
            if parameter.grad is not None and not _local(parameter.grad).isfinite().all():
                return f"the gradient of {name} is not finite"
        return "the norm of the gradient overflows"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a distributed tensor, sharing memory with it."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
