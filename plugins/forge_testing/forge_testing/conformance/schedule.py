"""What every learning-rate schedule does.

Inherit it, and say which schedule with the ``selection`` fixture.

.. code-block:: python

    class TestMine(ScheduleConformance):
        @pytest.fixture
        def selection(self):
            (component,) = forge_schedules()
            settings = component.settings()
            return Selection(family="schedule", component=component, settings=settings)
"""

from __future__ import annotations

import math
import pickle
import random

import pytest

from forge_core import Schedule, Selection
from forge_testing.conformance.suite import Suite
from forge_testing.context import bare_context

LENGTHS = (1, 2, 3, 10, 97, 1000)
"""Steps after warmup of the stages that are tried."""


class ScheduleConformance(Suite):
    """Inherit with a ``selection`` fixture. Needs no torch."""

    @pytest.fixture
    def selection(self) -> Selection[Schedule]:
        """The schedule under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def schedule(self, selection: Selection[Schedule]) -> Schedule:
        return selection.build(bare_context())

    def test_factors_are_finite_and_not_negative(self, schedule: Schedule) -> None:
        """At every step, and at ``step == steps``, where training is over."""
        for steps in LENGTHS:
            for step in range(steps + 1):
                factor = schedule(step, steps)
                assert isinstance(factor, int | float), (step, steps, factor)
                assert 0 <= factor < math.inf, (step, steps, factor)

    def test_it_starts_with_a_rate_above_zero(self, schedule: Schedule) -> None:
        """Right after warmup, also where this is the only step: else nothing would be learned."""
        for steps in LENGTHS:
            assert schedule(0, steps) > 0

    def test_warmup_leads_to_where_it_starts(self, schedule: Schedule) -> None:
        """The peak is ``training.learning_rate``: the factor after warmup is at most 1."""
        for steps in LENGTHS:
            assert schedule(0, steps) <= 1

    def test_a_resumed_run_goes_on_where_it_was(self, selection: Selection[Schedule]) -> None:
        """The factor depends on the step alone, not on which steps were asked for before."""
        in_order = selection.build(bare_context())
        factors = [in_order(step, 97) for step in range(98)]
        shuffled = list(range(98))
        random.Random(0).shuffle(shuffled)
        again = selection.build(bare_context())
        for step in shuffled:
            assert again(step, 97) == factors[step]

    def test_without_an_end_it_needs_none(
        self, selection: Selection[Schedule], schedule: Schedule
    ) -> None:
        """Where the component says ``ends=False``, the number of steps makes no difference."""
        if selection.ends:
            pytest.skip("it ends with training (ScheduleComponent.ends)")
        for step in (0, 1, 10, 1000, 100_000):
            factor = schedule(step, None)
            assert 0 <= factor < math.inf
            assert factor == schedule(step, step + 1) == schedule(step, step + 1000)

    def test_it_travels_to_other_processes(self, selection: Selection[Schedule]) -> None:
        arrived = pickle.loads(pickle.dumps(selection)).build(bare_context())
        assert arrived(1, 10) == selection.build(bare_context())(1, 10)
