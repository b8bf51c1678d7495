"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from forge_core import (
    BuildContext,
    Finding,
    Settings,
    Tracker,
    TrackerComponent,
    UsageError,
    hookimpl,
)

INSTALL = "pip install tensorboard"


class TensorboardSettings(Settings):
    """Nothing to set."""


def build_tensorboard(settings: TensorboardSettings, context: BuildContext) -> Tracker:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(f"tracker tensorboard: {error}; {INSTALL}") from error
    from forge_tensorboard.tracker import TensorboardTracker

    return TensorboardTracker(SummaryWriter)


def check_tensorboard(settings: TensorboardSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: the package that writes the files is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            f"tracker tensorboard: the package tensorboard is not installed; {INSTALL}"
        )


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="tensorboard",
        settings=TensorboardSettings,
        build=build_tensorboard,
        check=check_tensorboard,
        summary="scalars for TensorBoard in the run folder",
    )


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_core.doctor.packages import version

    yield version("tensorboard", tested="2.21.0")
