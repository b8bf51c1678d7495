"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_console.settings import ConsoleSettings
from forge_core import BuildContext, Tracker, TrackerComponent, hookimpl


def build_console(settings: ConsoleSettings, context: BuildContext) -> Tracker:
    from rich.console import Console

    from forge_console.live import LiveView, can_draw
    from forge_console.plain import PlainLog
    from forge_core import streams

    console = Console(highlight=False)
    if settings.view == "live" or (settings.view == "auto" and can_draw(console)):
        return LiveView(console)
    streams.show_everything(console.file)
    return PlainLog(console.file, settings.interval)


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="console",
        settings=ConsoleSettings,
        build=build_console,
        summary="live view on a terminal, plain lines in a log",
        default=True,
    )
