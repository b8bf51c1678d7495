"""Weights on their way in another type than the trainer keeps them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch


def narrowed(
    weights: Iterable[tuple[str, torch.Tensor]], dtype: str | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights, those of floating-point types in the given one.

    They are rounded where they are, one at a time, so that what is copied elsewhere is small.

    Args:
        weights: names and tensors.
        dtype: name of a torch type; None: as they are.
    """
    wanted: torch.dtype | None = getattr(torch, dtype) if dtype is not None else None
    for name, weight in weights:
        changes = wanted is not None and weight.is_floating_point()
        yield name, weight.detach().to(wanted) if changes else weight
