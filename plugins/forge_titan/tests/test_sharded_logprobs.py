"""The head with its vocabulary over several ranks, against the whole one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forge_core import OutputNeeds
from forge_tensors.logprobs import LogitShape, token_logprobs
from forge_titan import sharded_logprobs
from forge_titan.sharded_logprobs import sharded_token_logprobs

N, H, V, RANKS = 7, 5, 11, 3
ROWS = 4
"""Of the first ranks; the last has three."""


class Threads:
    """Stands for ``torch.distributed`` among threads: three ranks cost no processes here, and two
    real ones train in ``test_distributed.py``."""

    ReduceOp = dist.ReduceOp

    def __init__(self) -> None:
        self._barrier = threading.Barrier(RANKS)
        self._given: dict[int, torch.Tensor] = {}

    def all_reduce(self, tensor: torch.Tensor, *, group: int, op: Any = None) -> None:
        self._given[group] = tensor.clone()
        self._barrier.wait(timeout=300)
        whole = torch.stack([self._given[rank] for rank in range(RANKS)])
        self._barrier.wait(timeout=300)
        tensor.copy_(whole.amax(0) if op == dist.ReduceOp.MAX else whole.sum(0))


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], list[Any]]:
    monkeypatch.setattr(sharded_logprobs, "dist", Threads())

    def run(work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(work, range(RANKS)))

    return run


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_values_and_gradients_are_those_of_the_whole_head(
    on_ranks: Callable[[Callable[[int], Any]], list[Any]], chunk: int, with_entropy: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = 3 * torch.randn(N, H, generator=generator)
    weight = torch.randn(V, H, generator=generator)
    targets = torch.randint(V, (N,), generator=generator)
    ways = torch.randn(2, N, generator=generator)

    def backward(logprobs: torch.Tensor, entropy: torch.Tensor | None) -> None:
        total = (ways[0] * logprobs).sum()
        if entropy is not None:
            total = total + (ways[1] * entropy).sum()
        torch.autograd.backward(total)

    whole_hidden, whole_weight = (x.clone().requires_grad_() for x in (hidden, weight))
    expected = token_logprobs(
        whole_hidden,
        whole_weight,
        targets,
        shape=LogitShape(temperature=0.7),
        needs=OutputNeeds(entropy=with_entropy),
    )
    backward(expected.logprobs, expected.entropy)

    def rank(index: int) -> tuple[torch.Tensor, ...]:
        mine = weight[index * ROWS : (index + 1) * ROWS].clone().requires_grad_()
        inputs = hidden.clone().requires_grad_()
        group: Any = index
        logprobs, entropy = sharded_token_logprobs(
            inputs,
            mine,
            targets,
            first=index * ROWS,
            group=group,
            temperature=0.7,
            with_entropy=with_entropy,
            chunk=chunk,
        )
        backward(logprobs, entropy)
        assert inputs.grad is not None
        assert mine.grad is not None
        assert (entropy is None) == (not with_entropy)
        return logprobs, logprobs if entropy is None else entropy, inputs.grad, mine.grad

    results = on_ranks(rank)
    for logprobs, entropy, grad_hidden, _ in results:
        torch.testing.assert_close(logprobs, expected.logprobs)
        torch.testing.assert_close(entropy, expected.entropy if with_entropy else expected.logprobs)
        torch.testing.assert_close(grad_hidden, whole_hidden.grad)
    torch.testing.assert_close(torch.cat([part[3] for part in results]), whole_weight.grad)


def test_no_tokens_are_no_trouble(
    on_ranks: Callable[[Callable[[int], Any]], list[Any]],
) -> None:
    def rank(index: int) -> tuple[int, ...]:
        group: Any = index
        logprobs, _ = sharded_token_logprobs(
            torch.zeros(0, H, requires_grad=True),
            torch.zeros(ROWS, H, requires_grad=True),
            torch.zeros(0, dtype=torch.int64),
            first=0,
            group=group,
            chunk=4,
        )
        torch.autograd.backward(logprobs.sum())
        return tuple(logprobs.shape)

    assert on_ranks(rank) == [(0,)] * RANKS
