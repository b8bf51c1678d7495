"""Items that cannot be read: tried again, named with dataset and index, dropped where that is
allowed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from forge_core import (
    DataError,
    DatasetComponent,
    DatasetKeys,
    ForgeError,
    PluginError,
    Selection,
    Settings,
    Task,
)
from forge_run.dataset import GuardedDataset


class Items:
    """Five tasks. ``fails(index, times it was read before)`` is called first."""

    name = "items"

    def __init__(self, fails: Callable[[int, int], Any]) -> None:
        self.fails = fails
        self.reads = [0] * 5

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Task:
        self.reads[index] += 1
        self.fails(index, self.reads[index] - 1)
        return Task(str(index), "?")


def guarded(fails: Callable[[int, int], Any], **keys: Any) -> tuple[GuardedDataset, list[str]]:
    items = Items(fails)
    component = DatasetComponent(
        name="items", settings=Settings, build=lambda *_: items, summary="a test's"
    )
    selection = Selection(family="dataset", component=component, settings=Settings(), plugin="acme")
    told: list[str] = []
    dataset = GuardedDataset(
        selection,
        "dataset",
        DatasetKeys(**keys),
        items,
        waiting=lambda what, detail: nullcontext(),
        on_drop=told.append,
    )
    return dataset, told


def away(index: int, before: int) -> None:
    if index == 3:
        raise OSError("no route to host")


def test_an_item_that_comes_the_second_time() -> None:
    dataset, told = guarded(lambda index, before: None if before else 1 / 0)
    assert [task.id for task in dataset] == ["0", "1", "2", "3", "4"]
    assert (told, dataset.dropped) == ([], 0)
    assert dataset.name == "items"
    with pytest.raises(IndexError):
        dataset[5]


def test_an_item_that_cannot_be_read_is_named() -> None:
    dataset, _ = guarded(away)
    with pytest.raises(PluginError) as caught:
        dataset[3]
    assert str(caught.value) == (
        "dataset 'items' (plugin acme): item 3 failed: OSError: no route to host"
    )


def test_an_item_that_hangs_is_named() -> None:
    dataset, _ = guarded(lambda index, before: time.sleep(600), deadline=0.2, retries=0)
    with pytest.raises(PluginError, match=r"item 3 failed: DeadlineExceeded: no answer within"):
        dataset[3]


def test_what_is_wrong_with_the_data_is_not_tried_again() -> None:
    def wrong(index: int, before: int) -> None:
        assert not before
        raise DataError("data.jsonl:6: no answer")

    dataset, _ = guarded(wrong)
    with pytest.raises(DataError, match=r"^data\.jsonl:6: no answer$"):
        dataset[2]


def test_the_next_item_takes_the_place_of_one_that_is_dropped() -> None:
    dataset, told = guarded(away, on_failure="drop")
    assert [task.id for task in dataset] == ["0", "1", "2", "4", "4"]
    assert dataset.dropped == 1
    assert told[0].startswith("dataset: left out: dataset 'items' (plugin acme): item 3 failed: ")
    assert [task.id for task in dataset.readable(range(5))] == ["0", "1", "2", "4"]


def test_many_in_a_row_are_not_dropped() -> None:
    dataset, _ = guarded(lambda index, before: 1 / 0, on_failure="drop")
    with pytest.raises(ForgeError, match="5 items in a row cannot be read: dataset 'items'"):
        dataset[1]
    with pytest.raises(ForgeError, match="item 4 failed"):
        dataset.readable(range(5))
