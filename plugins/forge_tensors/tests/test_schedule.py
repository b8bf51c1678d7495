"""Warmup and the config's schedule together are the learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forge_core import RunFailed, TrainingSection, UsageError
from forge_tensors.schedule import LearningRate
from forge_testing.context import bare_context, cosine, linear, select


def rates(schedule: Any, count: int = 7, **training: Any) -> list[float]:
    context = bare_context(training=TrainingSection(**training), schedule=schedule)
    rate = LearningRate(context)
    return [rate(step) for step in range(count)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, [1 / 3, 2 / 3, 1, 1, 1, 1, 1]),
        (linear(), [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0]),
        (cosine(), [1 / 3, 2 / 3, 1, 0.8535534, 0.5, 0.1464466, 0]),
    ],
)
def test_the_course_of_the_learning_rate(schedule: Any, expected: list[float]) -> None:
    found = rates(schedule, steps=6, warmup_steps=2, learning_rate=2.0)
    assert found == pytest.approx([2 * part for part in expected])


def test_a_schedule_that_is_all_warmup_or_endless() -> None:
    assert rates(linear(), 2, steps=2, warmup_steps=5, learning_rate=6.0) == [1.0, 2.0]
    assert rates(linear(), 8, steps=2, warmup_steps=5, learning_rate=6.0)[6:] == [0.0, 0.0]
    with pytest.raises(UsageError, match=r"training\.steps"):
        rates(cosine())
    endless = select("schedule", lambda settings, context: lambda step, steps: 0.5, ends=False)
    assert rates(endless, 2, learning_rate=0.5) == [0.25, 0.25]


@pytest.mark.parametrize("factor", [-0.1, math.nan, math.inf, None, True, "1"])
def test_a_factor_that_is_none_names_the_schedule(factor: Any) -> None:
    schedule = select("schedule", lambda settings, context: lambda step, steps: factor)
    with pytest.raises(RunFailed, match=r"schedule 'mine'.*returned .* for step 0 of 3"):
        rates(schedule, steps=3)


def test_a_schedule_that_raises_is_named() -> None:
    schedule = select("schedule", lambda settings, context: lambda step, steps: 1 / step)
    with pytest.raises(RunFailed, match=r"schedule 'mine'.*ZeroDivisionError"):
        rates(schedule, steps=3)
