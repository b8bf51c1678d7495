"""The event bus: trackers and plugins hear what happens, in one order, from any thread."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forge_core import Event, ForgeError, RunFailed, RunInfo, StepRecord, Summary
from forge_core.contracts.blame import contained, described
from forge_run.listener import Listener
from forge_run.observers import Lookup, Observers

if TYPE_CHECKING:
    from pathlib import Path

    from forge_core import Episode, Tracker

MOST_WARNINGS = 100

QUIET_SECONDS = 3.0
"""A wait for trackers at the end of a run that takes longer is announced on standard error."""


class EventBus:
    """Trackers in threads of their own; those that are the run's own record in the caller's.

    A tracker that raises or hangs is given up and reported in a ``tracker_failed`` event. A record
    (a tracker with ``record = True``) that raises fails the run: a run that finishes is recorded.

    Args:
        trackers: by name, called in this order.
        hooks: finds the functions of the plugins that act in the run.
    """

    def __init__(self, trackers: Mapping[str, Tracker], hooks: Lookup) -> None:
        self._records = {
            name: tracker
            for name, tracker in trackers.items()
            if getattr(tracker, "record", False) is True
        }
        self._listeners = [
            Listener(name, tracker, self._tracker_failed)
            for name, tracker in trackers.items()
            if name not in self._records
        ]
        self.observers = Observers(hooks, self._hook_failed)
        self.warnings: list[str] = []
        """What went wrong without ending the run, each line once."""
        self._failure: ForgeError | None = None
        self.listeners: list[Callable[[str], None]] = []
        """Called with the message of every event that is progress, not a report of waiting."""
        # The watchdog, the services' processes and the trackers speak from threads of their own.
        self._lock = threading.RLock()

    def start(self, run: RunInfo) -> None:
        self._tell("start", run)
        self.observers.call("forge_run_started", run=run)

    def event(self, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        event = Event(time=time.time(), kind=kind, message=message, data=dict(data or {}))
        if kind == "warning" or kind.endswith("_failed"):
            self._warn(message)
        self._tell("event", event)
        if kind != "waiting":
            for listener in self.listeners:
                listener(message)

    def step(self, record: StepRecord, episodes: Sequence[Episode]) -> None:
        """
        Raises:
            RunFailed: the run's own record cannot be written, here or earlier in another thread.
        """
        self.observers.call("forge_step_finished", record=record)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._tell("step", record)
            if episodes:
                self._tell("episodes", record.step, tuple(episodes))

    def episode(self, episode: Episode, *, held_out: bool) -> None:
        """Let plugins see and change an episode.

        Args:
            episode: with its rewards.
            held_out: it is scored, not trained on.

        Raises:
            RunFailed: a plugin raised. What it would have changed is not known, so that training on
                the episode as it is could be wrong.
        """
        self.observers.require("forge_episode_finished", episode=episode, held_out=held_out)

    def checkpoint(self, folder: Path, step: int) -> None:
        self.observers.call("forge_checkpoint_saved", folder=folder, step=step)

    def finish(self, summary: Summary) -> None:
        """Tell all listeners how the run ended, and wait for them. Never raises."""
        for listener in self._listeners:
            listener.tell("finish", summary)
        try:
            self._drain()
        except KeyboardInterrupt:
            for listener in self._listeners:
                if not listener.wait(0):
                    listener.abandon("not waited for (interrupted)")
        records, self._records = self._records, {}
        for name, tracker in records.items():
            try:
                with contained():
                    tracker.finish(summary)
            except Exception as error:
                self._tracker_failed(name, "finish", described(error))
        self.observers.finish(summary)

    def _drain(self) -> None:
        began, announced = time.monotonic(), False
        while slow := [each.name for each in self._listeners if not each.wait(0.05)]:
            if not announced and time.monotonic() - began > QUIET_SECONDS:
                announced = True
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    print(
                        f"waiting for tracker {', '.join(slow)}; ctrl-C goes on without",
                        file=sys.stderr,
                        flush=True,
                    )

    def _tell(self, method: str, *arguments: Any) -> None:
        """Call a method of every tracker; the first failure of a record is raised at the end."""
        failure: ForgeError | None = None
        with self._lock:
            for name, tracker in list(self._records.items()):
                try:
                    with contained():
                        getattr(tracker, method)(*arguments)
                except Exception as error:
                    del self._records[name]
                    failure = failure or _blamed(name, method, error)
            for listener in self._listeners:
                listener.tell(method, *arguments)
            self._failure = self._failure or failure
        if failure is not None:
            raise failure

    def _tracker_failed(self, name: str, method: str, reason: str) -> None:
        self.event(
            "tracker_failed",
            f"tracker {name}: {method}: {reason}; the run goes on without it",
            {"tracker": name, "method": method},
        )

    def _hook_failed(self, plugin: str, hook: str, reason: str) -> None:
        self.event(
            "hook_failed",
            f"plugin {plugin}: {hook}: {reason}; the run goes on without this hook",
            {"plugin": plugin, "hook": hook},
        )

    def _warn(self, line: str) -> None:
        with self._lock:
            if line not in self.warnings and len(self.warnings) < MOST_WARNINGS:
                self.warnings.append(line)


def _blamed(name: str, method: str, error: BaseException) -> ForgeError:
    if isinstance(error, ForgeError):
        return error
    failure = RunFailed(f"{method}: {described(error)}", component=f"tracker {name}")
    failure.__cause__ = error
    return failure
