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

from forge_tensors import variable_length
from forge_tensors.grouped_attention import group_by_length, grouped_attention

PACKED = "forge_packed"

_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What models ask of an attention function beyond plain causal attention."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each sequence ends, and how they are grouped for kernels that want equal lengths.

    Compiled code is compiled again for each value of whatever it reads here that is not a tensor,
    except ``longest``, an int, which the compiler soon takes as any int.

    Args:
        ends: cumulative lengths from 0. [S + 1] int32
        longest: of the lengths.
        variable_length: use the kernel that takes ``ends``, where it takes the tensors' type.
        groups: (B, L) of each group, as in ``grouped_attention``. [G, 2] int64, on the CPU
        slots: place in the padded buffer of each of the T tokens; None where all sequences are
            equally long. [T] int64
    """

    ends: torch.Tensor
    longest: int
    variable_length: bool
    groups: torch.Tensor
    slots: torch.Tensor | None


def plan(lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
    """The layout of sequences of these lengths, for tensors on a device."""
    ends = F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
    groups, slots = group_by_length(lengths)
    return Layout(
        ends=ends.to(device),
        longest=max(lengths),
        variable_length=variable_length.works_on(torch.device(device)),
        groups=torch.tensor(groups),
        slots=None if slots is None else slots.to(device),
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
    if torch.is_autocast_enabled(q.device.type):
        # Norms and rotary embeddings with float32 weights leave q and k in float32. Attention runs
        # in autocast's type anyway, and the kernel for unequal lengths takes no other.
        low = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(low), k.to(low), v.to(low)
    layout = packed_layout
    if layout.variable_length and variable_length.takes(
        dtypes=(q.dtype, k.dtype, v.dtype),
        head_sizes=(q.shape[-1], k.shape[-1], v.shape[-1]),
        scaling=scaling,
    ):
        output = variable_length.variable_length_attention(
            q, k, v, layout.ends, layout.longest, scaling
        )
    else:
        output = grouped_attention(q, k, v, layout.groups, layout.slots, scaling)
    return output.unsqueeze(0), None


def register() -> None:
    """Make ``forge_packed`` known to transformers. It gets no mask function: it needs no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
