"""The order of tasks: every index once an epoch, seeded, resumable from one number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_run.data.order import TaskOrder


@given(length=st.integers(1, 50), seed=st.integers(0, 2**31), epochs=st.integers(1, 3))
def test_every_index_once_in_each_epoch(length: int, seed: int, epochs: int) -> None:
    order = TaskOrder(length, seed)
    for epoch in range(epochs):
        assert order.epoch == epoch
        assert sorted(order.take(length)) == list(range(length))


@given(
    length=st.integers(1, 30),
    seed=st.integers(0, 100),
    first=st.integers(0, 80),
    second=st.integers(1, 80),
)
def test_a_resumed_order_goes_on_where_it_was(
    length: int, seed: int, first: int, second: int
) -> None:
    whole = TaskOrder(length, seed).take(first + second)
    begun = TaskOrder(length, seed)
    begun.take(first)
    assert TaskOrder(length, seed, position=begun.position).take(second) == whole[first:]


@given(
    length=st.integers(1, 20),
    seed=st.integers(0, 100),
    positions=st.lists(st.integers(0, 100), max_size=30),
)
def test_looking_ahead_takes_nothing(length: int, seed: int, positions: list[int]) -> None:
    whole = TaskOrder(length, seed).take(101)
    order = TaskOrder(length, seed)
    assert [order.at(position) for position in positions] == [whole[p] for p in positions]
    assert order.position == 0
    assert order.take(101) == whole


def test_epochs_and_seeds_differ() -> None:
    order = TaskOrder(100, seed=1)
    first, second = order.take(100), order.take(100)
    assert first != second
    assert TaskOrder(100, seed=2).take(100) != first


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TaskOrder(0, seed=0)
