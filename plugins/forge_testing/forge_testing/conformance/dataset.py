"""What every dataset must do. Inherit it, and say which dataset with the ``selection`` fixture.

.. code-block:: python

    class TestMine(DatasetConformance):
        @pytest.fixture
        def selection(self):
            return Selection(family="dataset", component=MINE, settings=MineSettings())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args, get_origin

import pytest

from forge_core import BuildContext, Dataset, Message, Selection, Task
from forge_testing.conformance.other_processes import items_in_other_processes
from forge_testing.conformance.prompts import check_prompt
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context


class DatasetConformance(Suite):
    """Inherit with a ``selection`` fixture."""

    most_tasks: int = 2000
    """How many tasks are looked at, spread over the whole dataset."""

    @pytest.fixture
    def selection(self) -> Selection[Dataset]:
        """The dataset under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def context(self) -> BuildContext:
        """What it is built with."""
        return bare_context()

    @pytest.fixture
    def dataset(self, selection: Selection[Dataset], context: BuildContext) -> Dataset:
        return built(selection, context)

    @pytest.fixture
    def indices(self, dataset: Dataset) -> Sequence[int]:
        """Which tasks are looked at; the first and the last are among them."""
        length = len(dataset)
        step = max(1, length // self.most_tasks)
        return sorted({*range(0, length, step), length - 1})

    def test_it_is_not_empty(self, dataset: Dataset) -> None:
        assert len(dataset) >= 1

    def test_every_index_gives_a_task(self, dataset: Dataset, indices: Sequence[int]) -> None:
        for index in indices:
            task = dataset[index]
            assert isinstance(task, Task), f"item {index} is no Task"
            check_prompt(task.prompt, f"item {index}")
            assert task.answer is None or isinstance(task.answer, str), (
                f"item {index}: {task.answer!r} is no text"
            )
            assert task.response is None or isinstance(task.response, str | Message), (
                f"item {index}: {task.response!r} is neither text nor a message"
            )

    def test_ids_are_unique(self, dataset: Dataset, indices: Sequence[int]) -> None:
        ids = [dataset[index].id for index in indices]
        assert all(isinstance(name, str) and name for name in ids)
        twice = {name for name in ids if ids.count(name) > 1} if len(set(ids)) < len(ids) else set()
        assert not twice, f"ids that occur twice: {sorted(twice)[:5]}"

    def test_splits_share_no_task(
        self, selection: Selection[Dataset], context: BuildContext, dataset: Dataset
    ) -> None:
        """Where the settings have a ``split``: what is held out is in no other."""
        field = type(selection.settings).model_fields.get("split")
        if field is None or get_origin(field.annotation) is not Literal:
            pytest.skip("its settings have no split to choose")
        seen: dict[str, str] = {}
        for split in get_args(field.annotation):
            settings = selection.settings.model_copy(update={"split": split})
            tasks = replace(selection, settings=settings).build(context)
            step = max(1, len(tasks) // self.most_tasks)
            for index in range(0, len(tasks), step):
                other = seen.setdefault(repr(tasks[index].prompt), split)
                assert other == split, f"item {index} of split {split!r} is in {other!r} too"

    def test_an_item_is_always_the_same(self, dataset: Dataset, indices: Sequence[int]) -> None:
        first = [dataset[index] for index in indices]
        again = [dataset[index] for index in reversed(indices)]
        assert first == again[::-1]

    def test_it_ends(self, dataset: Dataset) -> None:
        """``for task in dataset`` stops at an ``IndexError``, and at nothing else."""
        try:
            task = dataset[len(dataset)]
        except IndexError:
            return
        raise AssertionError(
            f"item {len(dataset)} of {len(dataset)} is {task!r}; raise IndexError, or a loop over "
            "the dataset never ends"
        )

    def test_every_process_sees_the_same(
        self, selection: Selection[Dataset], context: BuildContext, indices: Sequence[int]
    ) -> None:
        """In processes whose hashes of texts differ, as those of two runs do."""
        some = indices[:: max(1, len(indices) // 200)]
        first, second = items_in_other_processes(selection, context, some)
        for index, item, other in zip(some, first, second, strict=True):
            assert item == other, (
                f"item {index} is {item!r} in one process and {other!r} in another; hash() and the "
                "order of sets differ from process to process: use hashlib and sorted()"
            )

    def test_built_twice_it_holds_the_same(
        self,
        selection: Selection[Dataset],
        context: BuildContext,
        dataset: Dataset,
        indices: Sequence[int],
    ) -> None:
        other = selection.build(context)
        assert len(other) == len(dataset)
        assert [other[index] for index in indices] == [dataset[index] for index in indices]
