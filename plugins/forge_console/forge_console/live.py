"""The console on a terminal: one picture of the run that is drawn again as it goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.control import Control
from rich.live import Live

from forge_console.frame import frame
from forge_console.history import RunHistory
from forge_console.summary import summary_lines
from forge_core import Episode, Event, RunInfo, StepRecord, Summary, streams

REFRESH_PER_SECOND = 4.0

EPISODE_SECONDS = 3.0
"""A sampled episode stays at least that long, so that it can be read."""

MAX_HEIGHT = 50

MIN_WIDTH, MIN_HEIGHT = 60, 14
"""A smaller terminal gets plain lines."""


def can_draw(console: Console) -> bool:
    """Whether the console is a terminal that can show the live view, and wants to."""
    return (
        console.file.isatty()
        and not console.is_dumb_terminal
        and "NO_COLOR" not in os.environ
        and console.encoding.startswith("utf")
        and console.width >= MIN_WIDTH
        and console.height >= MIN_HEIGHT
    )


class _Picture(Live):
    """A live display whose own thread does not end in a traceback."""

    failure: BaseException | None = None

    def refresh(self) -> None:
        if self.failure is None:
            try:
                super().refresh()
            except (Exception, SystemExit) as error:  # raised in the run's thread
                self.failure = error


class LiveView:
    """Draws a run from a thread of its own, so that it moves on while a step blocks the loop.

    What is printed meanwhile appears above the picture. At the end the picture gives way to the
    summary.

    Args:
        console: a terminal.
        clock: seconds since the epoch.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.time) -> None:
        self._console = console
        self._clock = clock
        self._lock = threading.Lock()
        self._history: RunHistory | None = None
        self._live: _Picture | None = None
        self._size = console.size
        self._episode_since = 0.0

    def start(self, run: RunInfo) -> None:
        self._history = RunHistory(run, self._clock())
        self._live = _Picture(
            get_renderable=self._picture,
            console=self._console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.start()

    def step(self, record: StepRecord) -> None:
        self._check()
        assert self._history is not None
        with self._lock:
            self._history.add_step(record, self._clock())

    def event(self, event: Event) -> None:
        self._check()
        assert self._history is not None
        with self._lock:
            self._history.add_event(event)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        assert self._history is not None
        now = self._clock()
        if now - self._episode_since >= EPISODE_SECONDS:
            self._episode_since = now
            with self._lock:
                self._history.add_episode(step, episodes[step % len(episodes)])

    def finish(self, summary: Summary) -> None:
        if self._live is not None:
            self._live.stop()
        for line in summary_lines(self._history, summary):
            self._console.print(line, soft_wrap=True)
        self._check()

    def _check(self) -> None:
        """Raise what drawing has raised."""
        streams.check(self._console.file)
        if self._live is not None and self._live.failure is not None:
            raise self._live.failure

    def _picture(self) -> Group:
        assert self._history is not None
        size = self._console.size
        if size != self._size:  # lines of the old width have been broken: begin on a clean screen
            self._size = size
            self._console.control(Control.clear(), Control.home())
        with self._lock:
            lines = frame(
                self._history, size.width, min(size.height - 1, MAX_HEIGHT), self._clock()
            )
        return Group(*lines)
