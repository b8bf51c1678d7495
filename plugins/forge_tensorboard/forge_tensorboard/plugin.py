"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import Finding, TrackerComponent, hookimpl
from forge_tensorboard.checks import check_installed
from forge_tensorboard.settings import TensorboardSettings


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="tensorboard",
        settings=TensorboardSettings,
        build="forge_tensorboard.tracker:TensorboardTracker",
        check=check_installed,
        summary="scalars for TensorBoard in the run folder",
    )


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_doctor.packages import version

    yield version("tensorboard", tested="2.21.0")
