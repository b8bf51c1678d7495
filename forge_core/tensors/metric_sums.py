"""Metrics of a step, as they add up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch


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

    def means(self) -> dict[str, float]:
        """Sum over count of each metric that counted anything, and the maxima."""
        pairs = {name: pair.tolist() for name, pair in self.sums.items()}
        means = {name: total / count for name, (total, count) in pairs.items() if count}
        return means | {name: float(value) for name, value in self.maxima.items()}


def scalar(value: torch.Tensor | float, device: torch.device | str) -> torch.Tensor:
    """A detached scalar in float64."""
    if isinstance(value, torch.Tensor):
        value = value.detach().reshape(())
    return torch.as_tensor(value, dtype=torch.float64, device=device)
