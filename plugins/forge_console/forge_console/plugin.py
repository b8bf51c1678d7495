"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_console.settings import ConsoleSettings
from forge_core import TrackerComponent, hookimpl


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="console",
        settings=ConsoleSettings,
        build="forge_console.view:make_view",
        summary="live view on a terminal, plain lines in a log",
        default=True,
    )
