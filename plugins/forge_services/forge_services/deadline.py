"""Deadlines for the code of components that runs in the controller's own process.

While such code waits, the event loop ends it. While it computes or blocks, nothing on the event
loop can; there the operating system's timer does (``SIGALRM``). It interrupts Python code, regular
expressions, and calls of the system such as ``sleep`` and ``recv``, in the main thread. Code in C
that never gives Python its turn, and code in another thread, cannot be interrupted.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what signal wraps, without its slow enums
import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from forge_core import RunInterrupted

T = TypeVar("T")

AGAIN = 1.0
"""Seconds after which code that has swallowed its interruption is interrupted again."""

CLEANUP = 5.0
"""Seconds that a coroutine may take to end once it was cancelled; then it is abandoned."""

LEAST = 0.1
"""Seconds that a call has at least, however late it is in a run that was asked to stop."""


class DeadlineExceeded(Exception):
    """A call took longer than it may."""


class _Overdue(BaseException):
    """Raised in the midst of code whose deadline has passed. No ``Exception``, so that
    ``except Exception: continue`` does not keep it."""


class Hurried(RunInterrupted):
    """A call was interrupted because the run was asked to stop, before its own deadline."""


class _Limit:
    """A call that has the main thread now."""

    __slots__ = ("fired", "hurried", "over", "until")

    def __init__(self, seconds: float, hurried: bool) -> None:
        self.until = time.monotonic() + seconds
        self.hurried = hurried
        self.over = False
        self.fired = False


class _Alarm:
    """The operating system's timer, which is ours while somebody holds it.

    It rings when the call that has the main thread is due, or earlier, and is then set again.
    """

    def __init__(self) -> None:
        self.limit: _Limit | None = None
        """Of the call that has the main thread."""
        self._holders = 0
        self._previous: Any = None

    def __enter__(self) -> None:
        """Hold it over several calls, between which nothing else has the main thread."""
        if self._holders == 0:
            self._previous = _signal.getsignal(signal.SIGALRM)
        self._holders += 1

    def __exit__(self, *error: object) -> None:
        self._holders -= 1
        if self._holders == 0:
            _signal.setitimer(signal.ITIMER_REAL, 0.0, 0.0)
            _signal.signal(signal.SIGALRM, self._previous)

    def ring_by(self, until: float) -> None:
        """Have it ring at that time at the latest, whatever a call has made of the timer."""
        if _signal.getsignal(signal.SIGALRM) is not _ring:
            _signal.signal(signal.SIGALRM, _ring)
        left = max(until - time.monotonic(), 1e-6)
        if not 0 < _signal.getitimer(signal.ITIMER_REAL)[0] <= left:
            _signal.setitimer(signal.ITIMER_REAL, left, AGAIN)


_alarm = _Alarm()


def _ring(number: int, frame: FrameType | None) -> None:
    limit = _alarm.limit
    if limit is None or limit.over:
        return
    left = limit.until - time.monotonic()
    if left <= 0.01:
        limit.fired = True
        raise _Overdue
    _signal.setitimer(signal.ITIMER_REAL, left, AGAIN)


class _Hurry:
    """Calls end by ``until``, whatever their own deadlines are; None: no limit."""

    until: float | None = None


_hurry = _Hurry()


def hurry(seconds: float | None) -> None:
    """Have every call, those under way too, end within so many seconds. None takes it back.

    Called in the main thread, as a signal's handler is.
    """
    _hurry.until = None if seconds is None else time.monotonic() + seconds
    limit = _alarm.limit
    if limit is not None and seconds is not None and limit.until > time.monotonic() + seconds:
        limit.until = time.monotonic() + seconds
        limit.hurried = True
        _alarm.ring_by(limit.until)


def calls_in_a_row() -> AbstractContextManager[None]:
    """Make several calls within their deadlines; together they cost little more than one.

    Nothing inside the block may wait: the timer is the process's, and other code may want it.
    """
    return _alarm if _in_main_thread() else nullcontext()


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def call_within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function; interrupt it when its time is up. Outside the main thread: just call it.

    Args:
        seconds: until then.
        call: what to call.

    Raises:
        DeadlineExceeded: it was interrupted, whatever it made of that.
        Hurried: the same, because of ``hurry``.
    """
    hurried = False
    if _hurry.until is not None:
        rest = max(LEAST, _hurry.until - time.monotonic())
        hurried, seconds = rest < seconds, min(rest, seconds)
    if not _in_main_thread():
        return call()
    limit, outer = _Limit(seconds, hurried), _alarm.limit
    with _alarm:
        try:
            _alarm.limit = limit
            _alarm.ring_by(limit.until)
            result = call()
            limit.over = True
        except BaseException as error:
            limit.over = True
            if limit.fired and not isinstance(error, KeyboardInterrupt):
                raise _exceeded(seconds, limit.hurried) from None
            raise
        finally:
            limit.over = True
            _alarm.limit = outer
            if outer is not None:
                _alarm.ring_by(outer.until)
    if limit.fired:
        raise _exceeded(seconds, limit.hurried)
    return result


async def await_within(seconds: float, call: Callable[[], Awaitable[T]]) -> T:
    """Call a function and await what it returns, all of it within a number of seconds.

    No task is made. A coroutine that does not end ``CLEANUP`` seconds after it was cancelled is
    abandoned.

    Raises:
        DeadlineExceeded: it was ended.
    """
    until = time.monotonic() + seconds
    inner, waits_for, done = call_within(seconds, partial(_begun, call))
    if done:  # it never waited: most episodes' answers
        result: T = waits_for
        return result
    scope = asyncio.timeout(max(0.0, until - time.monotonic()))
    try:
        async with scope:
            result = await _Stepped(inner, waits_for, until)
    except DeadlineExceeded:
        raise _exceeded(seconds) from None
    except TimeoutError:
        if not scope.expired():
            raise
        _spare_threads()
        raise _exceeded(seconds) from None
    if scope.expired():
        raise _exceeded(seconds)
    return result


def _exceeded(seconds: float, hurried: bool = False) -> DeadlineExceeded | Hurried:
    if hurried:
        return Hurried("a call that did not return was interrupted")
    return DeadlineExceeded(f"no answer within {seconds:.3g} s")


def _spare_threads() -> None:
    """What hangs may be a thread of the loop's executor, which has few: later calls get others.
    Those of the old one end when they have done what they were given."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def _begun(call: Callable[[], Awaitable[T]]) -> tuple[Generator[Any, Any, T], Any, bool]:
    """An awaitable up to its first wait: itself, what it waits for, False; or its result, True."""
    inner = call().__await__()
    try:
        return inner, next(inner), False
    except StopIteration as end:
        return inner, end.value, True


class _Stepped(Awaitable[T]):
    """An awaitable of which each stretch between two waits is interrupted at the deadline.

    Args:
        inner: what to await, at its first wait.
        waits_for: what it waits for.
        until: the deadline, on the monotonic clock.
    """

    def __init__(self, inner: Generator[Any, Any, T], waits_for: Any, until: float) -> None:
        self._inner = inner
        self._waits_for = waits_for
        self._until = until

    def __await__(self) -> Generator[Any, Any, T]:
        inner, waits_for = self._inner, self._waits_for
        step: Callable[[], Any]
        ending: asyncio.TimerHandle | None = None
        try:
            while True:
                try:
                    yield waits_for
                    step = partial(next, inner)
                except GeneratorExit:
                    self._abandon(inner)
                    raise
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    assert task is not None
                    if ending is not None and ending.when() <= asyncio.get_running_loop().time():
                        task.uncancel()
                        self._abandon(inner)
                        raise
                    if ending is None:
                        loop = asyncio.get_running_loop()
                        ending = loop.call_later(CLEANUP, task.cancel)
                    step = partial(_throw, inner, error)
                except BaseException as error:
                    step = partial(_throw, inner, error)
                try:
                    waits_for = call_within(self._seconds(ending), step)
                except StopIteration as end:
                    result: T = end.value
                    return result
        finally:
            if ending is not None:
                ending.cancel()

    def _seconds(self, ending: asyncio.TimerHandle | None) -> float:
        rest = self._until - time.monotonic()
        return max(rest, CLEANUP if ending is not None else LEAST)

    def _abandon(self, inner: Generator[Any, Any, T]) -> None:
        with contextlib.suppress(BaseException):
            call_within(AGAIN, getattr(inner, "close", lambda: None))


def _throw(inner: Generator[Any, Any, T], error: BaseException) -> Any:
    return inner.throw(error)
