"""Metrics of a step, as they add up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class MetricSums:
    """Metrics of one step as sums and counts, so that micro-batches and ranks simply add.

    ``sums`` holds [sum, count] and ``maxima`` a scalar for each name, in float64; the ranks of a
    distributed trainer exchange their ``numbers`` before they ask for ``means``.

    Args:
        device: where they are kept; that of the logprobs, so that adding waits for nothing.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self.sums: dict[str, torch.Tensor] = {}
        self.maxima: dict[str, torch.Tensor] = {}

    def add(self, name: str, total: torch.Tensor | float, count: torch.Tensor | float) -> None:
        """Add to the sum and the count of a metric."""
        pair = torch.stack([scalar(total, self._device), scalar(count, self._device)])
        self.sums[name] = self.sums[name] + pair if name in self.sums else pair

    def add_max(self, name: str, value: torch.Tensor | float) -> None:
        """Raise the maximum of a metric."""
        new = scalar(value, self._device)
        known = self.maxima.get(name)
        self.maxima[name] = new if known is None else torch.maximum(known, new)

    def add_all(
        self, metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]]
    ) -> None:
        """Add what a loss returned."""
        for name, (total, count) in metrics.items():
            self.add(name, total, count)

    def numbers(self) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        """Sum and count, and maximum, of each metric: copied from the device in one go.

        What goes to other processes must be this and not tensors: a CUDA tensor is unpickled on the
        device it came from, where the receiver would start a CUDA context of its own.
        """
        parts = [*self.sums.values(), *(value[None] for value in self.maxima.values())]
        values: list[float] = torch.cat(parts).tolist() if parts else []
        pairs = zip(
            values[0 : 2 * len(self.sums) : 2], values[1 : 2 * len(self.sums) : 2], strict=True
        )
        return (
            dict(zip(self.sums, pairs, strict=True)),
            dict(zip(self.maxima, values[2 * len(self.sums) :], strict=True)),
        )

    def means(self) -> dict[str, float]:
        """Sum over count of each metric that counted anything, and the maxima."""
        sums, maxima = self.numbers()
        return {name: total / count for name, (total, count) in sums.items() if count} | maxima


def scalar(value: torch.Tensor | float, device: torch.device | str) -> torch.Tensor:
    """A detached scalar in float64. A number is written on the device: copying it would wait."""
    if isinstance(value, torch.Tensor):
        return value.detach().reshape(()).to(device, torch.float64)
    return torch.full((), value, dtype=torch.float64, device=device)
