"""A block compiled with ``fullgraph=True``, as TorchTitan compiles layers, takes any batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from forge_tensors import variable_length
from forge_tensors.attention import Layout, packed_attention, plan
from forge_tensors.grouped_attention import group_by_length, grouped_attention


class Block(torch.nn.Module):
    """One linear layer and attention with two query heads for each key head."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(32, 32, dtype=dtype)

    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        q = self.project(x).unflatten(-1, (4, 8)).transpose(1, 2)
        output, _ = packed_attention(self, q, q[:, :2], q[:, 2:], None, packed_layout=layout)
        return x + output.flatten(2)


@pytest.fixture
def flash_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own ``varlen_attn`` with a CPU kernel under it, so that what is compiled is a GPU's
    code: its Python, its fake kernels and its autograd."""

    def run(q: Any, k: Any, v: Any, ends: torch.Tensor) -> torch.Tensor:
        lengths = ends.diff().tolist()
        groups, slots = group_by_length(lengths)
        return grouped_attention(q, k, v, torch.tensor(groups), slots, None)

    def forward(q: Any, k: Any, v: Any, ends: Any, *_: Any) -> tuple[torch.Tensor, ...]:
        lse = torch.zeros(q.shape[1], q.shape[0])
        return run(q, k, v, ends), lse, torch.zeros(2, dtype=torch.uint64)

    def backward(
        grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, ends: Any, *_: Any
    ) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros_like(x) for x in (q, k, v))

    torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", forward)
    torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu", backward)
    monkeypatch.setattr(variable_length, "works_on", lambda device: True)


@pytest.fixture(autouse=True)
def _compiler_starts_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _batches(count: int) -> Iterator[list[int]]:
    """Each with another number of sequences, and of other groups of similar length."""
    chance = random.Random(0)
    for index in range(count):
        yield [chance.randint(2, (10, 100, 400)[index % 3]) for _ in range(index + 1)]


@pytest.mark.usefixtures("flash_on_cpu")
def test_for_the_kernel_of_unequal_lengths() -> None:
    block = Block(torch.bfloat16)
    plain = Block(torch.bfloat16)
    block.compile(backend="aot_eager", fullgraph=True)
    for lengths in _batches(12):
        x = torch.randn(1, sum(lengths), 32, dtype=torch.bfloat16)
        output = block(x, plan(lengths))
        output.sum().backward()
        expected = plain(x, replace(plan(lengths), variable_length=False))
        torch.testing.assert_close(output, expected, rtol=0.02, atol=0.02)


def test_for_groups_of_similar_length() -> None:
    block, plain = Block(torch.float32), Block(torch.float32)
    block.compile(backend="aot_eager", fullgraph=True)
    seen = set()
    for lengths in _batches(24):
        layout = plan(lengths)
        seen.add(len(layout.groups))
        x = torch.randn(1, sum(lengths), 32)
        for each in (block, plain):
            each.zero_grad()
            each(x, layout).square().sum().backward()
        torch.testing.assert_close(
            block.project.weight.grad, plain.project.weight.grad, rtol=1e-4, atol=1e-3
        )
    assert len(seen) > 5
