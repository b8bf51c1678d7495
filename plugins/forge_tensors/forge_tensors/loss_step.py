"""What every trainer does around a loss: run it, distrust it, and add up what it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from forge_core import Loss, LossBatch, LossOutput, RunFailed, UsageError
from forge_core.contracts.blame import contained, described
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
    """

    def __init__(self, loss: Loss, device: torch.device | str) -> None:
        self._loss = loss
        self.losses = LossSums()
        self.metrics = MetricSums(device)

    def add(
        self, logprobs: torch.Tensor, batch: LossBatch, entropy: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the loss on a micro-batch of N trained tokens.

        Args:
            logprobs: of the tokens. [N]
            batch: the same tokens as the loss sees them.
            entropy: of the distributions that they came from, where the loss needs it. [N]

        Returns:
            the summed objective, to go backward from. Scalar; without a gradient when nothing that
            is trained led there.

        Raises:
            UsageError, RunFailed: as ``run_loss``.
        """
        output = run_loss(self._loss, logprobs, batch, entropy)
        self.losses.add(output, logprobs, batch)
        self.metrics.add_all(output.metrics)
        for name, value in output.maxima.items():
            self.metrics.add_max(name, value)
        sampler = batch.fields.get(SAMPLER_LOGPROBS)
        if sampler is not None:
            add_mismatch(self.metrics, logprobs, sampler)
        return output.sum


def run_loss(
    loss: Loss, logprobs: torch.Tensor, batch: LossBatch, entropy: torch.Tensor | None
) -> LossOutput:
    """Call a loss and make sure that it returned what a loss must.

    Raises:
        UsageError: the loss needs a field that the recipe does not give.
        RunFailed: it raised, or returned something else than a scalar sum and a count.
    """
    name = type(loss).__name__
    try:
        with contained():
            output = loss(logprobs, batch, entropy)
    except UsageError as error:
        raise UsageError(f"loss {name}: {error}") from error
    except Exception as error:
        raise RunFailed(described(error), component=f"loss {name}") from error
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
