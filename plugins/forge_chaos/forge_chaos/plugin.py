"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_chaos.settings import ChaosSettings
from forge_core import BuildContext, Tracker, TrackerComponent, hookimpl


def build(settings: ChaosSettings, context: BuildContext) -> Tracker:
    from forge_chaos.tracker import ChaosTracker

    return ChaosTracker(settings)


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="chaos",
        settings=ChaosSettings,
        build=build,
        summary="injects faults into the run by a seeded schedule, and records what to check",
    )
