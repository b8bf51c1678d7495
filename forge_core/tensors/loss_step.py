"""What every trainer does around a loss: run it, distrust it, and add up what it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from forge_core.errors import RunFailed, UsageError
from forge_core.protocols import Loss
from forge_core.tensors.batch import LossBatch, LossOutput


class MetricSums:
    """Metrics of one step as sums and counts, so that micro-batches and ranks simply add.

    ``sums`` holds [sum, count] and ``maxima`` a scalar for each name, in float64; a distributed
    trainer reduces them over its ranks before it asks for ``means``.

    Args:
        device: where they are kept; that of the logprobs, so that adding waits for nothing.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self.sums: dict[str, torch.Tensor] = {}
        self.maxima: dict[str, torch.Tensor] = {}

    def add(self, name: str, total: torch.Tensor | float, count: torch.Tensor | float) -> None:
        """Add to the sum and the count of a metric."""
        pair = torch.stack([_scalar(total, self._device), _scalar(count, self._device)])
        self.sums[name] = self.sums[name] + pair if name in self.sums else pair

    def add_max(self, name: str, value: torch.Tensor | float) -> None:
        """Raise the maximum of a metric."""
        scalar = _scalar(value, self._device)
        known = self.maxima.get(name)
        self.maxima[name] = scalar if known is None else torch.maximum(known, scalar)

    def add_all(
        self, metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]]
    ) -> None:
        """Add what a loss returned."""
        for name, (total, count) in metrics.items():
            self.add(name, total, count)

    def means(self) -> dict[str, float]:
        """Sum over count of each metric that counted anything, and the maxima."""
        pairs = {name: pair.tolist() for name, pair in self.sums.items()}
        means = {name: total / count for name, (total, count) in pairs.items() if count}
        return means | {name: float(value) for name, value in self.maxima.items()}


def _scalar(value: torch.Tensor | float, device: torch.device | str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        value = value.detach().reshape(())
    return torch.as_tensor(value, dtype=torch.float64, device=device)


def run_loss(
    loss: Loss, logprobs: torch.Tensor, batch: LossBatch, entropy: torch.Tensor | None
) -> LossOutput:
    """Call a loss and make sure that it returned what a loss must.

    Raises:
        UsageError: the loss needs a field that the recipe does not give.
        RunFailed: it raised, or returned something else than a scalar sum and a count.
    """
    name = type(loss).__name__
    lacking = sorted(loss.needs - batch.fields.keys() - {"entropy"})
    if lacking:
        given = ", ".join(sorted(batch.fields)) or "none"
        raise UsageError(
            f"loss {name} needs the field {lacking[0]!r}, which the recipe does not give "
            f"(it gives: {given})"
        )
    try:
        output = loss(logprobs, batch, entropy)
    except Exception as error:
        raise RunFailed(f"{type(error).__name__}: {error}", component=f"loss {name}") from error
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
        parts = (_scalar(output.sum, device), _scalar(output.count, device))
        self.parts.append((*parts, logprobs.detach(), batch))

    @property
    def total(self) -> float:
        return sum(float(total) for total, *_ in self.parts)

    @property
    def count(self) -> float:
        return sum(float(count) for _, count, *_ in self.parts)

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
