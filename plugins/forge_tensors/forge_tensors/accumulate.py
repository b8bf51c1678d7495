"""Products of low precision that add up in float32."""

from __future__ import annotations

from functools import lru_cache

import torch


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left @ right, in total's precision as far as the product's type allows.

    On CUDA devices that can, the product is added by the kernel that computes it and never rounded
    to the type of its factors; elsewhere it is rounded, then added.

    Args:
        total: [n, m]
        left: [n, k]
        right: [k, m], of left's type.
    """
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif fuses(total.device, left.dtype, total.dtype):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


def fuses(device: torch.device, factors: torch.dtype, total: torch.dtype) -> bool:
    """Whether a product of factors of one type can be added to a total of another in one call.

    Only CUDA has such a kernel, and not every torch release lets the total be of the wider type, so
    it is tried once on each device.
    """
    if device.type != "cuda" or total != torch.float32:
        return False
    return _tried(device, factors)


@lru_cache(maxsize=64)
def _tried(device: torch.device, factors: torch.dtype) -> bool:
    total = torch.arange(256.0, device=device).reshape(16, 16)
    left = torch.full((16, 32), 0.5, dtype=factors, device=device)
    expected = total + 8
    try:
        torch.addmm(total, left, left.T, out_dtype=torch.float32, out=total)
    except (NotImplementedError, TypeError, ValueError, RuntimeError):
        return False
    return torch.equal(total, expected)
