"""Packed attention for kernels that want equal lengths: sequences of similar length are padded to
the longest of their group, and each group is one kernel call.

Under ``torch.compile`` the same code is one operator that the compiler does not look into. Traced,
it would be compiled again for each number of groups, and a compiled block that may not break its
graph ends the run after eight of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from forge_tensors.rows import gather_rows, spread_rows

_SIMILAR = 0.7
"""A sequence shares a padded kernel call with longer ones of at most its length over this, so that
no more than half of the call's arithmetic (quadratic in length) is spent on padding."""

_SHORT = 32
"""Up to this length a kernel call costs more than padding does."""


def group_by_length(lengths: Sequence[int]) -> tuple[list[tuple[int, int]], torch.Tensor | None]:
    """Group sequences of similar length.

    The groups lie one after the other in a padded buffer of P places, each a block of B sequences
    by L tokens with the padding at the end of the shorter ones.

    Returns:
        (B, L) of each group, and the place in the buffer of each of the T tokens [T] int64, or None
        where all sequences are equally long, so that a reshape does.
    """
    if len(set(lengths)) == 1:
        return [(len(lengths), lengths[0])], None
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
    return [(len(group), lengths[group[0]]) for group in members], slots


def grouped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    groups: torch.Tensor,
    slots: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Causal attention of each sequence by itself, one kernel call a group.

    Args:
        q: [T, H, D]; k and v [T, K, D] with K dividing H.
        groups: (B, L) of each group. [G, 2] int64, on the CPU
        slots: as ``group_by_length`` returns them, on the device of q.
        scaling: of the scores; None: one over the square root of D.

    Returns:
        [T, H, D]
    """
    if torch.compiler.is_compiling():
        output: torch.Tensor = torch.ops.forge.grouped_attention(q, k, v, groups, slots, scaling)
        return output
    return _run(q, k, v, groups, slots, scaling)


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    groups: torch.Tensor,
    slots: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    shapes: list[list[int]] = groups.tolist()
    sizes = [batch * length for batch, length in shapes]
    if slots is not None:
        q, k, v = (spread_rows(x, slots, sum(sizes)) for x in (q, k, v))
    parts = zip(*(torch.split(x, sizes) for x in (q, k, v)), strict=True)
    outputs = [
        _causal(*(x.unflatten(0, shape) for x in part), scaling=scaling).flatten(0, 1)
        for shape, part in zip(shapes, parts, strict=True)
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if slots is None else gather_rows(output, slots)


def _causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scaling: float | None
) -> torch.Tensor:
    """Causal attention of [B, L, heads, D] each; the same comes out.

    Padding comes after the tokens of a sequence, where causality hides it from them.
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


# The operator. Its backward pass computes attention again, because what the kernel would keep for
# it is not known outside.

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor groups, Tensor? slots, float? scaling"
torch.library.define("forge::grouped_attention", f"({_INPUTS}) -> Tensor")
torch.library.define(
    "forge::grouped_attention_backward", f"(Tensor grad, {_INPUTS}) -> (Tensor, Tensor, Tensor)"
)
_DEVICES = ("cpu", "cuda")


@torch.library.impl("forge::grouped_attention", _DEVICES)
def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *layout: Any
) -> torch.Tensor:  # contiguous, as the compiler is told
    with torch.no_grad():
        return _run(q, k, v, *layout).contiguous()


@torch.library.impl("forge::grouped_attention_backward", _DEVICES)
def _backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *layout: Any
) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        gradients = torch.autograd.grad(_run(q, k, v, *layout), (q, k, v), grad)
    return tuple(x.contiguous() for x in gradients)


@torch.library.register_fake("forge::grouped_attention")  # type: ignore[untyped-decorator]
def _shape(q: torch.Tensor, *others: Any) -> torch.Tensor:
    return q.new_empty(q.shape)


@torch.library.register_fake("forge::grouped_attention_backward")  # type: ignore[untyped-decorator]
def _shapes(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *layout: Any
) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.scaling = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    gradients = torch.ops.forge.grouped_attention_backward(grad, *ctx.saved_tensors, ctx.scaling)
    return (*gradients, None, None, None)


torch.library.register_autograd("forge::grouped_attention", _differentiate, setup_context=_keep)
