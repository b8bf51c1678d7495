"""Tracker ``console``: a live view on a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from forge_core.component import BuildContext, Component, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from forge_core.protocols import Tracker

MIN_WIDTH, MIN_HEIGHT = 60, 14
"""A smaller terminal gets plain lines."""


class ConsoleSettings(Settings):
    """How a run shows itself."""

    view: Literal["auto", "live", "plain"] = Field(
        default="auto", description="auto: live on a terminal, plain lines in a pipe or log"
    )
    interval: float = Field(default=5.0, ge=0, description="seconds between plain lines of steps")


def build_console(settings: ConsoleSettings, context: BuildContext) -> Tracker:
    from rich.console import Console

    console = Console(highlight=False)
    if settings.view == "live" or (settings.view == "auto" and can_live(console)):
        from forge_core.trackers.live import LiveView

        return LiveView(console)
    from forge_core.trackers.plain import PlainLog

    return PlainLog(console.file, settings.interval)


def can_live(console: Console) -> bool:
    """Whether the console is a terminal that can draw the live view, and wants to."""
    return (
        console.file.isatty()
        and not console.is_dumb_terminal
        and "NO_COLOR" not in os.environ
        and console.encoding.startswith("utf")
        and console.width >= MIN_WIDTH
        and console.height >= MIN_HEIGHT
    )


CONSOLE = Component(
    name="console",
    settings=ConsoleSettings,
    build=build_console,
    summary="live view on a terminal, plain lines in a log",
)
