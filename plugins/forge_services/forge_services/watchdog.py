"""Nothing waits silently: a thread that says who waits for what, how long, since which event."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

logger = logging.getLogger(__name__)

EventSink = Callable[[str, str, Mapping[str, Any]], None]
"""Takes the kind, message and data of an ``Event`` (``forge_core.Event``)."""

caller: ContextVar[str] = ContextVar("caller", default="run")
"""Who waits, for waits that services and rewards register themselves, such as ``reward worker 3``.

Set it once where a stage begins; tasks started from there inherit it.
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Equal waits taken together.

    Args:
        who: who waits.
        what: for what.
        calls: how many such waits there are now.
        seconds: how long the oldest has waited.
        detail: what tells the oldest from the others.
    """

    who: str
    what: str
    calls: int
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        about = [f"{self.calls} calls"] if self.calls > 1 else []
        if self.detail:
            about.append(f"the oldest: {self.detail}" if about else self.detail)
        more = f" ({', '.join(about)})" if about else ""
        return f"{self.who} has waited {self.seconds:.3g} s for {self.what}{more}"


class _Wait:
    """A block that waits. No generator and no lock: several surround each turn of each episode."""

    __slots__ = ("detail", "report_at", "since", "waits", "what", "who")

    def __init__(
        self, waits: dict[int, _Wait], who: str, what: str, detail: str, threshold: float
    ) -> None:
        self.waits = waits
        self.who = who
        self.what = what
        self.detail = detail
        self.since = 0.0
        self.report_at = threshold
        """Age in seconds at which it is reported next."""

    def __enter__(self) -> None:
        self.since = time.monotonic()
        self.waits[id(self)] = self

    def __exit__(self, *error: object) -> None:
        del self.waits[id(self)]


class Watchdog:
    """Reports every wait longer than a threshold, again each time its length has doubled.

    Works while the event loop is blocked: it has a thread of its own, started by the first wait.

    Args:
        on_event: called **in the watchdog's thread** with kind ``waiting``.
        threshold: seconds after which a wait is reported.
    """

    def __init__(self, on_event: EventSink, threshold: float = 30.0) -> None:
        if threshold <= 0:
            raise ValueError(f"the threshold must be above 0 s, not {threshold}")
        self._on_event = on_event
        self._threshold = threshold
        self._waits: dict[int, _Wait] = {}
        """Oldest first (a dict keeps the order of insertion). Each entry is made and removed in one
        operation of the interpreter, so that the watchdog's thread may copy them at any time."""
        self._last_event: tuple[str, float] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def waiting(self, who: str, what: str, detail: str = "") -> AbstractContextManager[None]:
        """Say that ``who`` waits for ``what`` inside this block. Fine around an ``await``.

        Args:
            who: who waits.
            what: for what; equal waits are reported together.
            detail: what tells this one from the others; that of the oldest is reported.
        """
        if self._thread is None:
            self._start()
        return _Wait(self._waits, who, what, detail, self._threshold)

    def heard(self, message: str) -> None:
        """Remember the newest event of the run; reports name it."""
        self._last_event = (message, time.monotonic())

    def close(self) -> None:
        """End the thread. Safe to call twice."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._watch, name="forge-watchdog", daemon=True
                )
                self._thread.start()

    def _groups(self) -> dict[tuple[str, str], list[_Wait]]:
        """Equal waits, oldest first."""
        groups: dict[tuple[str, str], list[_Wait]] = {}
        for wait in list(self._waits.values()):
            groups.setdefault((wait.who, wait.what), []).append(wait)
        return groups

    def _watch(self) -> None:
        while not self._closed.wait(self._threshold / 4):
            for waiting in self._overdue():
                self._report(waiting)

    def _overdue(self) -> list[Waiting]:
        now = time.monotonic()
        overdue = []
        for (who, what), waits in self._groups().items():
            age = now - waits[0].since
            if age < waits[0].report_at:
                continue
            overdue.append(Waiting(who, what, len(waits), age, waits[0].detail))
            # The younger ones were just reported with the oldest.
            for wait in waits:
                while wait.report_at <= age:
                    wait.report_at *= 2
        return overdue

    def _report(self, waiting: Waiting) -> None:
        message = str(waiting)
        data: dict[str, Any] = {
            "who": waiting.who,
            "what": waiting.what,
            "calls": waiting.calls,
            "seconds": waiting.seconds,
        }
        if self._last_event is not None:
            event, when = self._last_event
            ago = time.monotonic() - when
            message += f"; last event {ago:.3g} s ago: {event}"
            data |= {"last_event": event, "last_event_seconds": ago}
        # Trackers show the event; as a warning, Python would print it a second time.
        logger.info("%s", message)
        try:
            self._on_event("waiting", message, data)
        except Exception:
            logger.exception("a listener of the watchdog failed")
