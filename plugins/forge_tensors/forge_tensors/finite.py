"""Whether weights are numbers still: looked at before they are saved or published."""

from __future__ import annotations

from collections.abc import Iterable

import torch


@torch.no_grad()
def first_not_finite(named: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """Which tensor has values that are infinite or NaN, and how many; None: all are finite.

    It reads each tensor once, on its device, and waits for that once a device: in bfloat16, about
    as long as copying the weights.

    Args:
        named: names and tensors; a distributed one by its local part.

    Returns:
        one line about the first such tensor, in the order given.
    """
    tensors = {
        name: tensor
        for name, tensor in named
        if tensor.numel() and tensor.is_floating_point() and tensor.itemsize > 1
    }
    # The largest magnitude of each is finite only if all its values are; unlike a sum or a norm of
    # squares it cannot overflow by itself.
    by_device: dict[torch.device, list[str]] = {}
    for name, tensor in tensors.items():
        by_device.setdefault(tensor.device, []).append(name)
    bad: set[str] = set()
    for names in by_device.values():
        largest = torch._foreach_norm([tensors[name] for name in names], torch.inf)
        finite = torch.stack([value.double() for value in largest]).isfinite().tolist()
        bad.update(name for name, is_finite in zip(names, finite, strict=True) if not is_finite)
    for name, tensor in tensors.items():
        if name in bad:
            strange = tensor.numel() - int(tensor.isfinite().sum())
            return f"weight {name} is not finite ({strange:,} of {tensor.numel():,} values)"
    return None
