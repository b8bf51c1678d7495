"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_chaos.settings import ChaosSettings
from forge_core import TrackerComponent, hookimpl


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="chaos",
        settings=ChaosSettings,
        build="forge_chaos.tracker:ChaosTracker",
        summary="injects faults into the run by a seeded schedule, and records what to check",
    )
