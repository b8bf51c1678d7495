"""The schedule of faults, and the settings that it is drawn from."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from forge_chaos.schedule import schedule
from forge_chaos.settings import ChaosSettings


def test_the_seed_decides_when() -> None:
    settings = ChaosSettings(seed=1, kill={"generator": 3}, corrupt={"checkpoint": 1})
    faults = schedule(settings, 20)
    assert faults == schedule(settings, 20)
    assert faults != schedule(settings.model_copy(update={"seed": 2}), 20)
    assert sorted((fault.kind, fault.target) for fault in faults) == [
        ("corrupt", "checkpoint"),
        ("kill", "generator"),
        ("kill", "generator"),
        ("kill", "generator"),
    ]
    assert sorted(fault.number for fault in faults) == [0, 1, 2, 3]
    assert all(2 <= fault.step <= 19 and 0 <= fault.moment < 1 for fault in faults)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kill": {"generators": 1}},
        {"kill": {"generator": -1}},
        {"corrupt": {"generator": 1}},
        {"delay_seconds": 0},
        {"kil": {}},
    ],
    ids=str,
)
def test_what_cannot_be_injected_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChaosSettings.model_validate(wrong)
