"""Ctrl-C, SIGTERM and SIGHUP: the first asks the run to stop after its step, a second ends it.

SIGHUP comes when the terminal or the ssh connection is gone, and then more than once (from the
shell and from the kernel), so it never ends a run at once. Under ``nohup`` it stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from forge_core import Interrupted
from forge_services.deadline import hurry

GRACE = 10.0
"""Seconds that the step under way has to end when a run is asked to stop."""


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
        self._demands = 0  # signals that a person or a scheduler sends on purpose

    def __enter__(self) -> StopRequest:
        # Handlers can only be set in the main thread; elsewhere (notebooks) the host has its own.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hurry(None)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._announcement is not None:
            self._announcement.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self._demands += number != signal.SIGHUP
        if self._demands > 1:
            raise Interrupted(name)
        if self.requested is not None:
            return
        self.requested = name
        hurry(GRACE)
        self._announcement = threading.Thread(target=self._on_request, args=(name,))
        self._announcement.start()

    _handle.marks_interrupts = True  # type: ignore[attr-defined]  # see contracts/blame.py


@contextmanager
def interrupts_marked() -> Iterator[None]:
    """Ctrl-C raises ``Interrupted`` in this block, unlike a component that raises
    ``KeyboardInterrupt``; where the host has a handler of its own, that one stays."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _raise_interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number).name)


_raise_interrupted.marks_interrupts = True  # type: ignore[attr-defined]
