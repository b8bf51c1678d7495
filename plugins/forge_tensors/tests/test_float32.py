"""float32 on a GPU is said to be slow, and TF32 is asked for by a key."""

from __future__ import annotations

import warnings

import pytest
import torch

from forge_core import DistributedSection, UsageError
from forge_tensors.float32 import set_float32, slow_float32

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "dtype", "settings", "slow"),
    [
        (CUDA, torch.float32, {}, True),
        (CUDA, torch.float32, {"precision": "bf16"}, False),
        (CUDA, torch.float32, {"tf32": True}, False),
        (CUDA, torch.bfloat16, {}, False),
        (CPU, torch.float32, {}, False),
    ],
)
def test_who_is_told(
    device: torch.device, dtype: torch.dtype, settings: dict[str, object], slow: bool
) -> None:
    advice = slow_float32(DistributedSection.model_validate(settings), dtype, device)
    assert (advice is not None) is slow
    if advice is not None:
        assert "distributed.precision=bf16" in advice
        with pytest.warns(UserWarning, match="without tensor cores"):
            set_float32(DistributedSection.model_validate(settings), dtype, device)


def test_on_a_cpu_nothing_changes_and_tf32_is_refused() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_float32(DistributedSection(), torch.float32, CPU)
    with pytest.raises(UsageError, match=r"distributed\.tf32"):
        set_float32(DistributedSection(tf32=True), torch.float32, CPU)
    assert torch.backends.cuda.matmul.allow_tf32 is before


def test_on_a_gpu_tf32_is_turned_on() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        set_float32(DistributedSection(tf32=True), torch.float32, CUDA)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
