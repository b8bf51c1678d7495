"""The cache against a plain model of it: one list of vectors for each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_torch.generator.cache import KVCache, fill_holes

CPU = torch.device("cpu")
HEADS, DIM, LAYERS = 2, 3, 2


class Twin:
    """A cache and what its rows should hold: vectors that count up, so that each is unlike."""

    def __init__(self, transposed_keys: bool) -> None:
        self.transposed_keys = transposed_keys
        self.cache = KVCache(CPU, transposed_keys=transposed_keys)
        self.rows: list[list[float]] = []
        self.count = 0.0

    def number(self) -> float:
        self.count += 1
        return self.count

    def join(self, lengths: list[int], sources: list[int]) -> None:
        fresh = KVCache(CPU, transposed_keys=self.transposed_keys)
        fresh.begin(lengths)
        rows = [[self.number() for _ in range(length)] for length in lengths]
        width = max(lengths)
        block = torch.tensor([[-1.0] * (width - len(row)) + row for row in rows])
        for layer in range(LAYERS):
            fresh.write(layer, spread(block, layer), -spread(block, layer))
        self.cache.adopt(fresh, sources)
        self.rows += [list(rows[source]) for source in sources]

    def step(self) -> None:
        self.cache.extend()
        column = [self.number() for _ in self.rows]
        for row, number in zip(self.rows, column, strict=True):
            row.append(number)
        block = torch.tensor(column).unsqueeze(1)
        for layer in range(LAYERS):
            key, value = spread(block, layer), -spread(block, layer)
            if layer:
                seen = self.cache.write_column(layer, key[:, :, 0], value[:, :, 0])
            else:
                seen = self.cache.write(layer, key, value)
            self.check(layer, *seen)

    def leave(self, alive: list[bool]) -> None:
        order = fill_holes(alive)
        self.cache.keep(order)
        self.rows = [self.rows[row] for row in order]

    def check(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        if self.transposed_keys:
            keys = keys.transpose(2, 3)
        visible = self.cache.visible()
        lengths = [len(row) for row in self.rows]
        assert self.cache.length == max(lengths)
        assert self.cache.ragged == (len(set(lengths)) > 1)
        assert visible.sum(-1).tolist() == lengths
        assert self.cache.positions().flatten().tolist() == [length - 1 for length in lengths]
        assert torch.isfinite(keys).all()
        assert torch.isfinite(values).all()
        for row, numbers in enumerate(self.rows):
            expected = spread(torch.tensor([numbers]), layer)[0]
            assert torch.equal(keys[row][:, visible[row]], expected)
            assert torch.equal(values[row][:, visible[row]], -expected)


def spread(block: torch.Tensor, layer: int) -> torch.Tensor:
    """Numbers [B, T] as distinct vectors [B, HEADS, T, DIM]."""
    offsets = torch.arange(HEADS * DIM).view(1, HEADS, 1, DIM) / 10 + 1000 * layer
    return block[:, None, :, None] + offsets


JOIN = st.tuples(
    st.just("join"),
    st.lists(st.integers(1, 90), min_size=1, max_size=4).flatmap(
        lambda lengths: st.tuples(
            st.just(lengths),
            st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5),
        )
    ),
)
STEPS = st.tuples(st.just("steps"), st.integers(1, 40))
LEAVE = st.tuples(st.just("leave"), st.integers(0, 2**12))


@pytest.mark.parametrize("transposed_keys", [False, True])
@given(operations=st.lists(st.one_of(JOIN, STEPS, LEAVE), max_size=10))
@settings(max_examples=20, deadline=None)
def test_rows_keep_what_was_written(transposed_keys: bool, operations: list[Any]) -> None:
    twin = Twin(transposed_keys)
    for kind, argument in operations:
        if kind == "join":
            twin.join(*argument)
        elif kind == "leave":
            twin.leave([bool(argument >> row & 1) for row in range(len(twin.rows))])
        else:
            for _ in range(argument if twin.rows else 0):
                twin.step()


def test_stores_stay_small_however_long_rows_come_and_go() -> None:
    twin = Twin(transposed_keys=True)
    for _ in range(20):
        twin.join([3], [0])
        for _ in range(20):
            twin.step()
        twin.leave([len(row) <= 43 for row in twin.rows])
    (keys, values), *_ = twin.cache._stores.values()
    assert keys.shape[3] == values.shape[2] <= 63 + 64
    assert keys.shape[0] == values.shape[0] == 3


@given(st.lists(st.booleans(), max_size=10))
def test_filling_holes_moves_as_few_rows_as_it_can(alive: list[bool]) -> None:
    order = fill_holes(alive)
    assert sorted(order) == [row for row, stays in enumerate(alive) if stays]
    moved = [source for target, source in enumerate(order) if target != source]
    assert len(moved) == sum(not stays for stays in alive[: len(order)])
    assert all(source >= len(order) for source in moved)
