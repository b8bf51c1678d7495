"""A dataset under the rules of its section: deadline, retries, what an unreadable item costs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from forge_core import DataError, ForgeError, PluginError, RunInterrupted, Task
from forge_core.contracts.blame import blaming
from forge_run.answers import check_is_task
from forge_services.deadline import call_within

if TYPE_CHECKING:
    from forge_core import Dataset, DatasetKeys, Selection

MOST_UNREADABLE = 10
"""Items in a row that cannot be read, after which the run fails."""


class GuardedDataset:
    """A dataset each item of which is a task, or an error that names dataset and index.

    Args:
        selection: which component it is.
        section: ``dataset`` or ``eval_dataset``.
        keys: deadline, retries and outcome.
        dataset: what the component built.
        waiting: registers a wait for something with the watchdog.
        on_drop: called with a line for each item that was left out.
    """

    def __init__(
        self,
        selection: Selection[Dataset],
        section: str,
        keys: DatasetKeys,
        dataset: Dataset,
        *,
        waiting: Callable[[str, str], AbstractContextManager[None]],
        on_drop: Callable[[str], None],
    ) -> None:
        self.keys = keys
        self.dropped = 0
        """Items that were left out."""
        self._selection = selection
        self._section = section
        self._dataset = dataset
        self._waiting = waiting
        self._on_drop = on_drop
        with blaming(selection, "len()"):
            self._length = call_within(keys.deadline, lambda: len(dataset))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __getitem__(self, index: int) -> Task:
        """The task at an index; where that cannot be read and may be dropped, the next one.

        Raises:
            IndexError: there is no such index.
            ForgeError: it cannot be read, or none of many in a row; names dataset and index.
        """
        index = operator.index(index)
        for offset in range(min(MOST_UNREADABLE, len(self))):
            try:
                return self._read((index + offset) % len(self) if offset else index)
            except ForgeError as error:
                self._drop(error)
                failure = error
        count = min(MOST_UNREADABLE, len(self))
        raise PluginError(f"{self._section}: {count} items in a row cannot be read: {failure}")

    def readable(self, indices: Iterable[int]) -> list[Task]:
        """The tasks at these indices without those that cannot be read, if they may be dropped.

        Raises:
            ForgeError: one cannot be read and may not be dropped, or none can be.
        """
        tasks = []
        for index in indices:
            try:
                tasks.append(self._read(index))
            except ForgeError as error:
                self._drop(error)
                failure = error
        if not tasks:
            raise failure
        return tasks

    def _drop(self, error: ForgeError) -> None:
        if self.keys.on_failure == "fail" or isinstance(error, RunInterrupted):
            raise error
        self.dropped += 1
        self._on_drop(f"{self._section}: left out: {error}")

    def _read(self, index: int) -> Task:
        if not -self._length <= index < self._length:
            raise IndexError(f"{self._section} has {self._length} items, none at {index}")
        for attempt in range(self.keys.retries + 1):
            try:
                with (
                    self._waiting(f"{self._section} to read an item", f"item {index}"),
                    blaming(self._selection, f"item {index}"),
                ):
                    item = call_within(self.keys.deadline, lambda: self._dataset[index])
                break
            except (DataError, RunInterrupted):  # what is wrong with the data stays wrong
                raise
            except ForgeError:
                if attempt == self.keys.retries:
                    raise
        return check_is_task(self._selection, item, index)
