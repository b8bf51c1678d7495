"""What every trainer does around a loss: run it, distrust it, and add up what it returns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch

from forge_core import (
    ChunkedLoss,
    Loss,
    LossBatch,
    LossOutput,
    ModelOutputs,
    OutputNeeds,
    RunFailed,
    UsageError,
)
from forge_core.contracts.blame import contained, described
from forge_tensors.logprobs import NOTHING, Scores, Terms, Tokens
from forge_tensors.metric_sums import MetricSums, scalar
from forge_tensors.mismatch import FIELD as SAMPLER_LOGPROBS
from forge_tensors.mismatch import add_mismatch


class LossStep:
    """A loss over the micro-batches of one step.

    ``losses`` and ``metrics`` add up what it returned, and how far the sampler's logprobs are from
    the trainer's where the recipe gives them.

    Args:
        loss: of the step.
        device: that of the logprobs.
        needs: outputs of the policy that the loss asks for.
    """

    def __init__(
        self, loss: Loss, device: torch.device | str, needs: OutputNeeds = NOTHING
    ) -> None:
        self._loss = loss
        self._needs = needs
        self.losses = LossSums()
        self.metrics = MetricSums(device)

    def terms(self, batch: LossBatch) -> Terms | None:
        """What makes the loss's terms of a micro-batch's log-probabilities; None: it needs none.

        Args:
            batch: the micro-batch's N trained tokens.
        """
        if not self._needs.log_softmax:
            return None

        def terms(log_softmax: torch.Tensor, tokens: Tokens) -> torch.Tensor:
            return run_terms(self._loss, log_softmax, batch.part(tokens))

        return terms

    def add(self, scores: Scores, batch: LossBatch) -> torch.Tensor:
        """Run the loss on a micro-batch of N trained tokens.

        Args:
            scores: of the tokens, with what the loss needs.
            batch: the same tokens as the loss sees them.

        Returns:
            the summed objective, to go backward from. Scalar; without a gradient when nothing that
            is trained led there.

        Raises:
            UsageError, RunFailed: as ``run_loss``.
        """
        logprobs = scores.logprobs
        output = run_loss(self._loss, logprobs, batch, scores.outputs())
        self.losses.add(output, logprobs, batch)
        self.metrics.add_all(output.metrics)
        for name, value in output.maxima.items():
            self.metrics.add_max(name, value)
        sampler = batch.fields.get(SAMPLER_LOGPROBS)
        if sampler is not None:
            add_mismatch(self.metrics, logprobs, sampler)
        return output.sum


@contextmanager
def _of_loss(loss: Loss) -> Iterator[str]:
    """Errors name the loss; its name."""
    name = type(loss).__name__
    try:
        with contained():
            yield name
    except UsageError as error:
        raise UsageError(f"loss {name}: {error}") from error
    except RunFailed:
        raise
    except Exception as error:
        raise RunFailed(described(error), component=f"loss {name}") from error


def run_loss(
    loss: Loss, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
) -> LossOutput:
    """Call a loss and make sure that it returned what a loss must.

    Raises:
        UsageError: the loss uses a field that the recipe does not give, or an output of the policy
            that it does not ask for.
        RunFailed: it raised, or returned something else than a scalar sum and a count.
    """
    with _of_loss(loss) as name:
        output = loss(logprobs, batch, outputs)
    if not isinstance(output, LossOutput):
        raise RunFailed(
            f"returned {type(output).__name__}, not LossOutput", component=f"loss {name}"
        )
    for what, value in (("sum", output.sum), ("count", output.count)):
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise RunFailed(
                f"returned a {what} of shape {list(value.shape)}, not a scalar",
                component=f"loss {name}",
            )
    return output


def run_terms(loss: Loss, log_softmax: torch.Tensor, batch: LossBatch) -> torch.Tensor:
    """Call a loss's ``terms`` on n tokens and make sure that it returned a number for each.

    Raises:
        UsageError: as ``run_loss``.
        RunFailed: it raised, or returned something else than n or n x K numbers.
    """
    with _of_loss(loss) as name:
        terms = cast(ChunkedLoss, loss).terms(log_softmax, batch)
    count = log_softmax.shape[0]
    if isinstance(terms, torch.Tensor) and terms.dim() in (1, 2) and terms.shape[0] == count:
        return terms
    shape = (
        f"shape {list(terms.shape)}" if isinstance(terms, torch.Tensor) else type(terms).__name__
    )
    raise RunFailed(
        f"terms returned {shape} for {count} tokens, not [{count}] or [{count}, K]",
        component=f"loss {name}",
    )


@dataclass(slots=True)
class LossSums:
    """The loss of one step, as it adds up over micro-batches.

    Args:
        parts: of each micro-batch: detached sum, count, and the logprobs and fields that led there.
    """

    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, LossBatch]] = field(
        default_factory=list
    )

    def add(self, output: LossOutput, logprobs: torch.Tensor, batch: LossBatch) -> None:
        """Add a micro-batch's loss."""
        device = logprobs.device
        parts = (scalar(output.sum, device), scalar(output.count, device))
        self.parts.append((*parts, logprobs.detach(), batch))

    @property
    def total(self) -> float:
        return sum(float(total) for total, *_ in self.parts)

    @property
    def count(self) -> float:
        return sum(float(count) for _, count, *_ in self.parts)

    @property
    def mean(self) -> float:
        """Total over count; 0 where nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def trouble(self) -> str | None:
        """What is not finite in the loss and what led there, in one line; None if all is well."""
        for index, (total, count, logprobs, batch) in enumerate(self.parts):
            if math.isfinite(float(total)) and math.isfinite(float(count)) and float(count) >= 0:
                continue
            ranges = [_range("logprobs", logprobs)]
            ranges += [_range(name, values) for name, values in sorted(batch.fields.items())]
            return (
                f"the loss is {float(total):g} over a count of {float(count):g} in micro-batch "
                f"{index + 1} of {len(self.parts)} ({batch.num_sequences} sequences, "
                f"{logprobs.numel()} trained tokens; {', '.join(ranges)})"
            )
        return None


def _range(name: str, values: torch.Tensor) -> str:
    if values.numel() == 0:
        return f"{name}: none"
    finite = values[values.isfinite()]
    strange = values.numel() - finite.numel()
    text = f"{name} {finite.min():.4g} to {finite.max():.4g}" if finite.numel() else name
    return f"{text} and {strange} not finite" if strange else text
