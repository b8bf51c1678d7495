"""Tells trackers and plugins what happens, in one order, from whichever thread it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forge_core.run.records import Event, RunInfo, StepRecord, Summary

if TYPE_CHECKING:
    from forge_core.protocols import Tracker
    from forge_core.types import Episode


class Broadcast:
    """Args:
    trackers: heard in this order.
    hook: the plugin manager's lifecycle hooks.
    """

    def __init__(self, trackers: Sequence[Tracker], hook: Any) -> None:
        self._trackers = trackers
        self._hook = hook
        self.listeners: list[Callable[[str], None]] = []
        """Called with the message of every event that is progress, not a report of waiting."""
        # The watchdog speaks from its own thread.
        self._lock = threading.RLock()

    def start(self, run: RunInfo) -> None:
        with self._lock:
            for tracker in self._trackers:
                tracker.start(run)
        self._hook.forge_run_started(run=run)

    def event(self, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        event = Event(time=time.time(), kind=kind, message=message, data=dict(data or {}))
        with self._lock:
            for tracker in self._trackers:
                tracker.event(event)
        if kind != "waiting":
            for listener in self.listeners:
                listener(message)

    def step(self, record: StepRecord, episodes: Sequence[Episode]) -> None:
        self._hook.forge_step_finished(record=record)
        with self._lock:
            for tracker in self._trackers:
                tracker.step(record)
                if episodes:
                    tracker.episodes(record.step, episodes)

    def finish(self, summary: Summary) -> None:
        with self._lock:
            for tracker in self._trackers:
                tracker.finish(summary)
        self._hook.forge_run_finished(summary=summary)
