"""The kernel's own trackers and their settings. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from forge_core.contracts.component import BuildContext, Component
from forge_core.contracts.errors import UsageError
from forge_core.contracts.settings import Settings

if TYPE_CHECKING:
    from forge_core.contracts.protocols import Tracker
    from forge_core.trackers.jsonl import JsonlTracker
    from forge_core.trackers.tensorboard import TensorboardTracker


class ConsoleSettings(Settings):
    """How a run shows itself to a person."""

    view: Literal["auto", "live", "plain"] = Field(
        default="auto", description="auto: live on a terminal, plain lines in a pipe or log"
    )
    interval: float = Field(default=5.0, ge=0, description="seconds between plain lines of steps")


class JsonlSettings(Settings):
    """What is written to the run folder."""

    episodes: int = Field(
        default=4, ge=0, description="episodes written to episodes.jsonl in a step; 0: none"
    )


class TensorboardSettings(Settings):
    """Nothing to set."""


def build_console(settings: ConsoleSettings, context: BuildContext) -> Tracker:
    from rich.console import Console

    from forge_core import streams
    from forge_core.trackers.live import LiveView, can_draw
    from forge_core.trackers.plain import PlainLog

    console = Console(highlight=False)
    if settings.view == "live" or (settings.view == "auto" and can_draw(console)):
        return LiveView(console)
    streams.show_everything(console.file)
    return PlainLog(console.file, settings.interval)


def build_jsonl(settings: JsonlSettings, context: BuildContext) -> JsonlTracker:
    from forge_core.trackers.jsonl import JsonlTracker

    return JsonlTracker(settings.episodes)


def build_tensorboard(settings: TensorboardSettings, context: BuildContext) -> TensorboardTracker:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(f"tracker tensorboard: {error}; pip install tensorboard") from error
    from forge_core.trackers.tensorboard import TensorboardTracker

    return TensorboardTracker(SummaryWriter)


def check_tensorboard(settings: TensorboardSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: the package that writes the files is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "tracker tensorboard: the package tensorboard is not installed; pip install tensorboard"
        )


CONSOLE = Component(
    name="console",
    settings=ConsoleSettings,
    build=build_console,
    summary="live view on a terminal, plain lines in a log",
    default=True,
)
JSONL = Component(
    name="jsonl",
    settings=JsonlSettings,
    build=build_jsonl,
    summary="metrics, episodes and events as lines of JSON in the run folder",
    default=True,
)
TENSORBOARD = Component(
    name="tensorboard",
    settings=TensorboardSettings,
    build=build_tensorboard,
    check=check_tensorboard,
    summary="scalars for TensorBoard in the run folder",
)
