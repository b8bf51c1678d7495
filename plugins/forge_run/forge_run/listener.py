"""One tracker in a thread of its own: whatever it does, the run goes on."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forge_core.contracts.blame import described

if TYPE_CHECKING:
    from forge_core import Tracker

CALL_SECONDS = 30.0
"""A call that takes longer hangs."""

FINISH_SECONDS = 300.0
"""The same for ``finish``, in which services upload what they have kept."""

RETRY_AFTER = (0.5, 2.0)
"""Seconds before each further attempt at a call that failed on a connection."""

BACKLOG = 256
"""Most calls that wait for a tracker. Where it is full the run waits: memory stays bounded, and a
tracker that is only slow loses nothing."""


class Listener:
    """Calls a tracker's methods in order, in a daemon thread.

    A tracker that raises or hangs is given up: after an exception it only gets ``finish``, so that
    it can close its files; after a hang nothing.

    Args:
        name: of the tracker.
        tracker: what is called.
        on_failure: called at most once, from any thread, with the tracker's name, the method and
            the reason.
    """

    def __init__(
        self, name: str, tracker: Tracker, on_failure: Callable[[str, str, str], None]
    ) -> None:
        self.name = name
        self._tracker = tracker
        self._on_failure = on_failure
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(BACKLOG)
        self._lock = threading.Lock()
        self._failed = False
        self._hangs = False
        self._call: tuple[str, float] | None = None
        """The method that is being called, and since when."""
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def tell(self, method: str, *arguments: Any) -> None:
        """Queue a call; ``finish`` is the last."""
        while not self._hangs and (method == "finish" or not self._failed):
            try:
                self._calls.put((method, arguments), timeout=0.1)
            except queue.Full:
                self._check_progress()
            else:
                break
        self._check_progress()

    def wait(self, seconds: float) -> bool:
        """After ``finish``: wait for it, at most so long; whether it is done or given up."""
        self._thread.join(timeout=seconds)
        self._check_progress()
        return self._hangs or not self._thread.is_alive()

    def abandon(self, reason: str) -> None:
        """Wait no more for a call that has not returned."""
        self._hangs = True
        method = self._call[0] if self._call is not None else "finish"
        self._report(method, reason)

    def _check_progress(self) -> None:
        call = self._call
        if call is None or self._hangs:
            return
        method, since = call
        limit = FINISH_SECONDS if method == "finish" else CALL_SECONDS
        if time.monotonic() - since > limit:
            self.abandon(f"no answer for {limit:g} s")

    def _work(self) -> None:
        method = ""
        while method != "finish" and not self._hangs:
            method, arguments = self._calls.get()
            if self._failed and method != "finish":
                continue
            self._call = (method, time.monotonic())
            try:
                self._attempt(method, arguments)
            except BaseException as error:  # SystemExit too: a tracker does not end the run
                self._report(method, described(error))
            self._call = None

    def _attempt(self, method: str, arguments: tuple[Any, ...]) -> None:
        call = getattr(self._tracker, method)
        for pause in () if self._failed else RETRY_AFTER:
            try:
                call(*arguments)
            except OSError as error:
                if not _may_pass(error):
                    raise
                time.sleep(pause)
            else:
                return
        call(*arguments)

    def _report(self, method: str, reason: str) -> None:
        with self._lock:
            reported, self._failed = self._failed, True
        if not reported:
            with contextlib.suppress(Exception):  # the run's own record fails where it is written
                self._on_failure(self.name, method, reason)


def _may_pass(error: OSError) -> bool:
    """Whether a connection failed, not a file or the terminal.

    HTTP clients derive their errors from ``OSError`` without a number.
    """
    if isinstance(error, BrokenPipeError):
        return False
    return isinstance(error, ConnectionError | TimeoutError) or error.errno is None
