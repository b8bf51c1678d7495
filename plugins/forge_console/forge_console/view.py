"""Tracker ``console``: the live view or plain lines, whichever fits what is written to."""

from __future__ import annotations

from rich.console import Console

from forge_console.live import LiveView, can_draw
from forge_console.plain import PlainLog
from forge_console.settings import ConsoleSettings
from forge_core import Tracker, streams


def make_view(settings: ConsoleSettings) -> Tracker:
    """The view that the settings ask for."""
    console = Console(highlight=False)
    if settings.view == "live" or (settings.view == "auto" and can_draw(console)):
        return LiveView(console)
    streams.show_everything(console.file)
    return PlainLog(console.file, settings.interval)
