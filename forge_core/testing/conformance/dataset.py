"""What every dataset must do. Inherit it, and say which dataset with the ``selection`` fixture.

.. code-block:: python

    class TestMine(DatasetConformance):
        @pytest.fixture
        def selection(self):
            return Selection(family="dataset", component=MINE, settings=MineSettings())
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forge_core.component import BuildContext, Selection
from forge_core.protocols import Dataset
from forge_core.testing.conformance.prompts import check_prompt
from forge_core.testing.conformance.suite import Suite
from forge_core.testing.context import bare_context
from forge_core.types import Message, Task


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
        return selection.build(context)

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

    def test_an_item_is_always_the_same(self, dataset: Dataset, indices: Sequence[int]) -> None:
        first = [dataset[index] for index in indices]
        again = [dataset[index] for index in reversed(indices)]
        assert first == again[::-1]

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
