"""Each optimizer and schedule of this package does what its family does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from forge_core import OptimizerComponent, OptimizerFactory, Schedule, ScheduleComponent, Selection
from forge_optim.plugin import OPTIMIZERS, SCHEDULES
from forge_testing.conformance.optimizer import OptimizerConformance, made, some_weights
from forge_testing.conformance.schedule import ScheduleConformance
from forge_testing.context import bare_context

OTHER_SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"betas": (0.8, 0.9), "weight_decay": 0.1, "amsgrad": True},
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "adafactor": {"weight_decay": 0.1, "d": 2.0},
}
"""Beside the defaults of each."""

CASES = [(component, {}) for component in OPTIMIZERS] + [
    (component, OTHER_SETTINGS[component.name])
    for component in OPTIMIZERS
    if component.name in OTHER_SETTINGS
]


class TestOptimizers(OptimizerConformance):
    @pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name}{'*' if case[1] else ''}")
    def selection(self, request: pytest.FixtureRequest) -> Selection[OptimizerFactory]:
        component, settings = request.param
        assert isinstance(component, OptimizerComponent)
        return Selection(
            family="optimizer",
            component=component,
            settings=component.settings(**settings),
            plugin="forge-rl-optim",
        )


class TestSchedules(ScheduleConformance):
    @pytest.fixture(
        params=[
            (component, settings)
            for component in SCHEDULES
            for settings in ({}, {"floor": 0.1}, {"timescale": 5}, {"decay": 1.0})
            if settings.keys() <= component.settings.model_fields.keys()
        ],
        ids=lambda case: f"{case[0].name}{case[1] or ''}",
    )
    def selection(self, request: pytest.FixtureRequest) -> Selection[Schedule]:
        component, settings = request.param
        assert isinstance(component, ScheduleComponent)
        return Selection(
            family="schedule",
            component=component,
            settings=component.settings(**settings),
            plugin="forge-rl-optim",
        )


def schedule(name: str, **settings: Any) -> Schedule:
    component = next(each for each in SCHEDULES if each.name == name)
    selection = Selection(
        family="schedule", component=component, settings=component.settings(**settings)
    )
    return selection.build(bare_context())


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("constant", {}, [1, 1, 1, 1, 1]),
        ("linear", {}, [1, 0.75, 0.5, 0.25, 0]),
        ("linear", {"floor": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", {}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        ("wsd", {"decay": 0.5}, [1, 1, 1, 0.5, 0]),
        ("wsd", {"decay": 0.5, "floor": 0.5}, [1, 1, 1, 0.75, 0.5]),
        ("inverse_sqrt", {"timescale": 1}, [1, 2**-0.5, 3**-0.5, 0.5, 5**-0.5]),
    ],
)
def test_the_course_of_each(name: str, settings: dict[str, Any], expected: list[float]) -> None:
    course = schedule(name, **settings)
    assert [course(step, 4) for step in range(5)] == pytest.approx(expected)


def test_vectors_are_not_decayed() -> None:
    adamw = OPTIMIZERS[0]
    selection: Selection[OptimizerFactory] = Selection(
        family="optimizer", component=adamw, settings=adamw.settings(weight_decay=0.1)
    )
    matrices, vectors = made(selection, some_weights()).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert matrices["param_names"] == ["first", "second"]


def test_nesterov_needs_momentum() -> None:
    sgd = next(each for each in OPTIMIZERS if each.name == "sgd")
    with pytest.raises(ValidationError, match="needs a momentum above 0"):
        sgd.settings(nesterov=True)
