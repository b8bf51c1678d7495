"""torch's kernel for sequences of unequal length (FlashAttention), and whether it can be used.

The parameters of its Python function differ between torch releases, and the kernel behind it
refuses some GPUs and head sizes. What it takes is read from its signature, and it is tried once on
each device.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

from forge_tensors.grouped_attention import group_by_length, grouped_attention

_ACCEPTED = frozenset(inspect.signature(varlen_attn).parameters)

_LARGEST_HEAD = 256


def arguments(accepted: Collection[str], *, scaling: float | None, grouped: bool) -> dict[str, Any]:
    """How to ask for causal attention.

    Args:
        accepted: names of the function's parameters.
        scaling: of the scores; None: the kernel's default.
        grouped: several query heads share a key head.

    Raises:
        NotImplementedError: the function cannot be asked for it.
    """
    asked: dict[str, Any] = {}
    if "window_size" in accepted:
        asked["window_size"] = (-1, 0)
    elif "is_causal" in accepted:
        asked["is_causal"] = True
    else:
        raise NotImplementedError("torch's varlen_attn has no argument for causal attention")
    if scaling is not None:
        asked["scale"] = scaling
    # Without the argument the kernel takes any number of heads that divides.
    if grouped and "enable_gqa" in accepted:
        asked["enable_gqa"] = True
    return asked


def takes(
    *,
    dtypes: Collection[torch.dtype],
    head_sizes: Collection[int],
    scaling: float | None,
    accepted: Collection[str] = _ACCEPTED,
) -> bool:
    """Whether the kernel computes attention for tensors of these types and head sizes."""
    low = len(set(dtypes)) == 1 and set(dtypes) <= {torch.float16, torch.bfloat16}
    size = max(head_sizes)
    fits = len(set(head_sizes)) == 1 and size % 8 == 0 and size <= _LARGEST_HEAD
    default = scaling is None or math.isclose(scaling, size**-0.5, rel_tol=1e-6)
    return low and fits and (default or "scale" in accepted)


def variable_length_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ends: torch.Tensor,
    longest: int,
    scaling: float | None,
) -> torch.Tensor:
    """Causal attention of each sequence by itself.

    Args:
        q: [T, H, D]; k and v [T, K, D] with K dividing H.
        ends: cumulative lengths from 0. [S + 1] int32
        longest: of the lengths, or more.
        scaling: of the scores; None: one over the square root of D.

    Returns:
        [T, H, D]
    """
    asked = arguments(
        _ACCEPTED,
        scaling=scaling if "scale" in _ACCEPTED else None,
        grouped=q.shape[1] != k.shape[1],
    )
    output = varlen_attn(q, k, v, ends, ends, longest, longest, **asked)
    assert isinstance(output, torch.Tensor)
    return output


def works_on(device: torch.device) -> bool:
    """Whether the kernel is there on a device and gives the right numbers; tried once.

    A CUDA device on which it does not work is named in a warning, with the reason.
    """
    if device.type != "cuda":
        return False
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _tried(device)


@lru_cache(maxsize=64)
def _tried(device: torch.device) -> bool:
    reason = trouble(device)
    if reason is not None:
        warnings.warn(
            f"{device}: packed attention runs without torch's kernel for unequal lengths, which is "
            f"slower ({reason})",
            stacklevel=2,
        )
    return reason is None


def trouble(device: torch.device) -> str | None:
    """Why the kernel cannot be used on a device, in one line; None if it can."""
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            close = _agrees(device)
    except (NotImplementedError, TypeError, ValueError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        sentence = lines[0].partition(". ")[0]  # lists of backends follow
        return f"torch {torch.__version__}: {sentence}"
    return None if close else f"torch {torch.__version__}: it gives other numbers than attention"


def _agrees(device: torch.device) -> bool:
    """Values and gradients for three short sequences, against those of grouped attention."""
    lengths = [5, 17, 2]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), heads, 64, generator=generator).to(device, torch.bfloat16)
        for heads in (4, 2, 2)
    )
    ends = torch.tensor([0, 5, 22, 24], dtype=torch.int32, device=device)
    groups, slots = group_by_length(lengths)
    assert slots is not None
    table, slots = torch.tensor(groups), slots.to(device)
    results = []
    for packed in (True, False):
        a, b, c = (x.clone().requires_grad_() for x in (q, k, v))
        if packed:
            output = variable_length_attention(a, b, c, ends, max(lengths), None)
        else:
            output = grouped_attention(a, b, c, table, slots, None)
        gradients = torch.autograd.grad(output.float().square().sum(), (a, b, c))
        results.append([output.detach(), *gradients])
    return all(
        float((ours.float() - theirs.float()).norm()) <= 0.05 * float(theirs.float().norm())
        for ours, theirs in zip(*results, strict=True)
    )
