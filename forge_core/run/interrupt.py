"""Ctrl-C and SIGTERM: the first asks the run to stop after its step, the second ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """Context manager that turns signals into a flag the run looks at between steps.

    Args:
        on_request: called once, in a thread of its own, with the signal's name. A handler runs
            between any two instructions of the main thread, which may be holding a lock or writing
            to the very file that a tracker would write to.
    """

    def __init__(self, on_request: Callable[[str], None]) -> None:
        self.requested: str | None = None
        self._on_request = on_request
        self._announcement: threading.Thread | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Handlers can only be set in the main thread; elsewhere (notebooks) the host has its own.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._announcement is not None:
            self._announcement.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested is not None:
            raise KeyboardInterrupt(name)
        self.requested = name
        self._announcement = threading.Thread(target=self._on_request, args=(name,))
        self._announcement.start()
