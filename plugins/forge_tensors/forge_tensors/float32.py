"""What float32 means on a GPU: full precision without tensor cores, unless the config says less."""

from __future__ import annotations

import warnings

import torch

from forge_core import DistributedSection, UsageError


def set_float32(distributed: DistributedSection, dtype: torch.dtype, device: torch.device) -> None:
    """Apply ``distributed.tf32`` to this process, and warn where float32 is slow.

    Args:
        distributed: the config's section.
        dtype: type that the trainer keeps weights in.
        device: where it computes.

    Raises:
        UsageError: TF32 is asked for on a CPU.
    """
    if distributed.tf32:
        if device.type != "cuda":
            raise UsageError(
                "distributed.tf32: is for float32 on a GPU, and this trainer runs on the CPU; "
                "leave it out"
            )
        torch.backends.cuda.matmul.allow_tf32 = True
    advice = slow_float32(distributed, dtype, device)
    if advice is not None:
        warnings.warn(advice, stacklevel=2)


def slow_float32(
    distributed: DistributedSection, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Advice for a trainer that computes without tensor cores on a GPU that may have them; None for
    any other."""
    plain = distributed.precision == "fp32" and dtype == torch.float32 and not distributed.tf32
    if device.type != "cuda" or not plain:
        return None
    return (
        "the trainer computes in float32 without tensor cores; distributed.precision=bf16 is many "
        "times faster on a GPU (distributed.tf32=true: less so, with rounder products)"
    )
