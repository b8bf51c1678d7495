"""Attention over packed sequences: block-diagonal and causal, without a mask.

Registered with transformers as the attention implementation ``forge_packed``. A model run with it
takes tokens ``[1, T]`` of sequences laid end to end; all but attention is computed for the T real
tokens only, and attention for each sequence by itself: no kernel ever sees the keys of one sequence
beside the queries of another, so nothing can cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

PACKED = "forge_packed"

_SIMILAR = 0.7
"""A sequence shares a padded kernel call with longer ones of at most its length over this, so that
no more than half of the call's arithmetic (quadratic in length) is spent on padding."""

_SHORT = 32
"""Up to this length a kernel call costs more than padding does."""

_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What models ask of an attention function beyond plain causal attention."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each sequence ends, and how they are grouped for kernels that want equal lengths.

    The groups lie one after the other in a padded buffer of P places, each a block of B sequences
    by L tokens with the padding at the end of the shorter ones.

    Args:
        lengths: of the sequences, in order; T in all.
        groups: (B, L) of each group.
        slots: place in the padded buffer of each of the T tokens; None where all sequences are
            equally long, so that a reshape does. [T] int64
        ends: cumulative lengths from 0, for kernels that take unequal lengths. [S + 1] int32
    """

    lengths: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]
    slots: torch.Tensor | None
    ends: torch.Tensor


def plan(lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
    """Group sequences of similar length."""
    ends = F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
    if len(set(lengths)) == 1:
        groups = ((len(lengths), lengths[0]),)
        return Layout(tuple(lengths), groups, None, ends.to(device))
    members: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[members[-1][0]] if members else 0
        if members and (longest <= _SHORT or lengths[index] >= _SIMILAR * longest):
            members[-1].append(index)
        else:
            members.append([index])
    starts = [0] * len(lengths)
    used = 0
    for group in members:
        for index in group:
            starts[index] = used
            used += lengths[group[0]]
    slots = torch.cat([torch.arange(n) + s for n, s in zip(lengths, starts, strict=True)])
    return Layout(
        lengths=tuple(lengths),
        groups=tuple((len(group), lengths[group[0]]) for group in members),
        slots=slots.to(device),
        ends=ends.to(device),
    )


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_layout: Layout | None = None,
    scaling: float | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in the form that transformers calls.

    Args:
        module: the attention layer.
        query: ``[1, H, T, D]``; key and value ``[1, K, T, D]`` with K dividing H.
        packed_layout: given to the model as a keyword argument, which it hands on.
        scaling: of the scores; default one over the square root of D.

    Returns:
        ``[1, T, H, D]`` and no attention weights.

    Raises:
        NotImplementedError: the model does not hand the layout on, or asks for something else than
            plain causal attention.
    """
    if packed_layout is None:
        raise NotImplementedError("the model does not hand keyword arguments on to its attention")
    extras = [name for name in _UNSUPPORTED if asked.get(name) is not None]
    if extras or attention_mask is not None or getattr(module, "is_causal", True) is False:
        raise NotImplementedError(f"packed attention is causal, without {extras or 'a mask'}")
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] == v.shape[-1]:
        output = _variable_length(q, k, v, packed_layout, scaling)
    else:
        output = _grouped(q, k, v, packed_layout, scaling)
    return output.unsqueeze(0), None


def _grouped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scaling: float | None
) -> torch.Tensor:
    """One kernel call a group. [T, heads, D] each; the same comes out."""
    slots = layout.slots
    if slots is not None:
        places = sum(batch * length for batch, length in layout.groups)
        q, k, v = (_Pad.apply(x, slots, places) for x in (q, k, v))  # type: ignore[no-untyped-call]
    sizes = [batch * length for batch, length in layout.groups]
    parts = zip(*(torch.split(x, sizes) for x in (q, k, v)), strict=True)
    outputs = [
        _causal(*(x.unflatten(0, group) for x in part), scaling=scaling).flatten(0, 1)
        for group, part in zip(layout.groups, parts, strict=True)
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if slots is None else gather_rows(output, slots)


def gather_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``x[rows]``, for rows that are all different: then the gradient need not add up.

    Args:
        x: [P, ...]
        rows: no index twice. [N] int64
    """
    gathered: torch.Tensor = _Gather.apply(x, rows)  # type: ignore[no-untyped-call]
    return gathered


class _Pad(torch.autograd.Function):
    """[T, ...] -> [P, ...]: each row to a place of its own, zeros in between."""

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
    """[P, ...] -> [N, ...]: rows that are not taken get a gradient of zero."""

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


def _causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scaling: float | None
) -> torch.Tensor:
    """Causal attention of [B, L, heads, D] each; the same comes out.

    Padding stands behind the tokens of a sequence, where causality hides it from them.
    """
    output = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=True,
        scale=scaling,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return output.transpose(1, 2)


def _variable_length(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scaling: float | None
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    longest = max(layout.lengths)
    output = varlen_attn(
        q,
        k,
        v,
        layout.ends,
        layout.ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0),  # causal
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(output, torch.Tensor)
    return output


def register() -> None:
    """Make ``forge_packed`` known to transformers. It gets no mask function: it needs no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
