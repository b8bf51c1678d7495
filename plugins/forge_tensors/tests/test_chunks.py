"""How much of the logits is held at a time, and how gradients of the head add up."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from forge_tensors.accumulate import add_product, fuses
from forge_tensors.activations import head_activations
from forge_tensors.chunks import chunk_bytes
from forge_tensors.logprobs import chunk_bytes_on, token_logprobs
from forge_testing.shapes import LLAMA_31_8B

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("cuda_memory", "expected"),
    [
        (None, 64 * MIB),  # a CPU
        (2 * GIB, 64 * MIB),
        (24 * GIB, 384 * MIB),
        (80 * GIB, GIB),
        (141 * GIB, GIB),
    ],
)
def test_a_chunk_suits_its_device(cuda_memory: int | None, expected: int) -> None:
    assert chunk_bytes(cuda_memory) == expected


def test_on_a_cpu_chunks_stay_small() -> None:
    assert chunk_bytes_on(torch.device("cpu")) == 64 * MIB
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            sizes.extend([result.nbytes] if isinstance(result, torch.Tensor) else [])
            return result

    with Watch():
        token_logprobs(torch.randn(64, 2), torch.randn(400_000, 2), torch.zeros(64).long())
    assert max(sizes) <= 64 * MIB


def test_the_plan_counts_the_chunks_of_the_device() -> None:
    from forge_models.shape import shape_of

    shape = shape_of(LLAMA_31_8B)
    assert shape is not None
    assert head_activations(shape, 16_384, cuda=False) == 3 * 64 * MIB
    assert head_activations(shape, 16_384, cuda=True) == 3 * GIB
    assert head_activations(shape, 10, cuda=True) == 3 * 10 * shape.vocab * 4


def test_the_size_of_a_chunk_is_known_without_torch() -> None:
    program = (
        "import forge_tensors.activations, json, sys; print(json.dumps('torch' in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_add_up_in_float32(dtype: torch.dtype) -> None:
    left, right = (torch.randn(shape).to(dtype) for shape in ((7, 33), (33, 5)))
    total = torch.randn(7, 5)
    expected = total.double() + left.double() @ right.double()
    add_product(total, left, right)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), expected, rtol=0.02, atol=0.02)


def test_only_cuda_adds_a_product_as_it_is_computed() -> None:
    assert not fuses(torch.device("cpu"), torch.bfloat16, torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("most_bytes", [MIB, 64 * MIB])
def test_gradients_of_the_head_on_a_gpu(most_bytes: int) -> None:
    hidden, weight = torch.randn(512, 64), torch.randn(5000, 64) * 0.1
    targets = torch.randint(5000, (512,))
    gradients = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.bfloat16)):
        h = hidden.to(device, dtype).requires_grad_()
        w = weight.to(device, torch.float64 if device == "cpu" else torch.float32).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logprobs, _ = token_logprobs(h, w, targets.to(device), most_bytes=most_bytes)
        logprobs.sum().backward()
        gradients.append([x.grad.double().cpu() for x in (h, w) if x.grad is not None])
    for exact, rough in zip(*gradients, strict=True):
        assert float((rough - exact).norm() / exact.norm()) < 0.02
