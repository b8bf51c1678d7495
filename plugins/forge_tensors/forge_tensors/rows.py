"""Rows taken from a tensor, and rows put into one, for indices that do not repeat.

The gradient of indexing adds up over equal indices. Where there are none, a copy does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


def gather_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``x[rows]``, for rows that are all different.

    Args:
        x: [P, ...]
        rows: no index twice. [N] int64
    """
    gathered: torch.Tensor = _Gather.apply(x, rows)  # type: ignore[no-untyped-call]
    return gathered


def spread_rows(x: torch.Tensor, slots: torch.Tensor, places: int) -> torch.Tensor:
    """Each row of ``x`` in a place of its own, zeros elsewhere. [places, ...]

    Args:
        x: [T, ...]
        slots: place of each row; no place twice. [T] int64
        places: at least T.
    """
    spread: torch.Tensor = _Spread.apply(x, slots, places)  # type: ignore[no-untyped-call]
    return spread


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slots: torch.Tensor, places: int) -> torch.Tensor:
        ctx.save_for_backward(slots)
        return x.new_zeros(places, *x.shape[1:]).index_copy_(0, slots, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        return grad.index_select(0, slots), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.places = x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (rows,) = ctx.saved_tensors
        return grad.new_zeros(ctx.places, *grad.shape[1:]).index_copy_(0, rows, grad), None
