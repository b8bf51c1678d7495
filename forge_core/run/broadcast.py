"""Tells trackers and plugins what happens, in one order, from whichever thread it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forge_core.contracts import described
from forge_core.errors import ForgeError, RunFailed
from forge_core.run.records import Event, RunInfo, StepRecord, Summary

if TYPE_CHECKING:
    from forge_core.protocols import Tracker
    from forge_core.types import Episode


class Broadcast:
    """A tracker that raises is named in the error, and is told nothing after that.

    Args:
        trackers: by name, told in this order.
        hook: the plugin manager's lifecycle hooks.
    """

    def __init__(self, trackers: Mapping[str, Tracker], hook: Any) -> None:
        self._trackers = dict(trackers)
        self._hook = hook
        self.listeners: list[Callable[[str], None]] = []
        """Called with the message of every event that is progress, not a report of waiting."""
        # The watchdog speaks from its own thread.
        self._lock = threading.RLock()

    def start(self, run: RunInfo) -> None:
        self._tell("start", run)
        self._hook.forge_run_started(run=run)

    def event(self, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        event = Event(time=time.time(), kind=kind, message=message, data=dict(data or {}))
        self._tell("event", event)
        if kind != "waiting":
            for listener in self.listeners:
                listener(message)

    def step(self, record: StepRecord, episodes: Sequence[Episode]) -> None:
        self._hook.forge_step_finished(record=record)
        with self._lock:
            self._tell("step", record)
            if episodes:
                self._tell("episodes", record.step, episodes)

    def finish(self, summary: Summary) -> None:
        try:
            self._tell("finish", summary)
        finally:
            self._hook.forge_run_finished(summary=summary)

    def _tell(self, method: str, *arguments: Any) -> None:
        """Call a method of every tracker; the first failure is raised when all were called."""
        failures: list[tuple[str, Exception]] = []
        with self._lock:
            for name, tracker in list(self._trackers.items()):
                try:
                    getattr(tracker, method)(*arguments)
                except Exception as error:
                    failures.append((name, error))
                    del self._trackers[name]
        if failures:
            name, failure = failures[0]
            if isinstance(failure, ForgeError):
                raise failure
            message = f"{method}: {described(failure)}"
            raise RunFailed(message, component=f"tracker {name}") from failure
