"""The child's end: a process that does not outlive its parent, and takes with it what it started.

Two processes in a session of their own. The outer one runs no foreign code, so that nothing keeps
it from killing everything below it once the parent is gone, kill -9 included. The inner one does
the work. What that starts stays below the outer process even when its own parent ends or it moves
to a session of its own, as sandboxes do (``timeout``, ``setsid``, ``start_new_session``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from forge_local.processes.descendants import adopt_orphans, descendants, kill_descendants
from forge_local.processes.logs import pump
from forge_local.processes.scratch import remove_folder

TOO_MANY_PROCESSES = 190
"""Exit code of the outer process when it has killed the inner one for starting too many."""

_TIME_TO_CLEAN_UP = 1.0
"""Seconds that what the inner process has started may go on after it."""

_COUNT_EVERY = 0.25
"""Seconds between two counts of processes; more where that would take over 1 % of a core."""


def become_child() -> tuple[int, list[str]]:
    """Become the inner of two processes, as ``Child`` asks for. Returns in the inner one alone.

    Returns:
        descriptor of the socket to the parent, which was standard input, and the arguments.
    """
    channel = _take_over_stdin()
    lifeline, log, scratch, processes, *arguments = sys.argv[1:]
    _divide(
        int(lifeline),
        channel,
        Path(log) if log else None,
        Path(scratch) if scratch else None,
        int(processes) if processes else None,
    )
    return channel, arguments


def _divide(
    lifeline: int, channel: int, log: Path | None, scratch: Path | None, processes: int | None
) -> None:
    parent = os.getppid()
    adopt_orphans()
    printed, output = os.pipe() if log is not None else (-1, -1)
    inner = os.fork()
    if inner:
        os.close(channel)  # the inner one's alone
        pumping = None
        if log is not None:
            os.close(output)
            pumping = threading.Thread(target=pump, args=(printed, log), daemon=True)
            pumping.start()
        _Supervisor(inner, parent, lifeline, pumping, scratch).run(processes)
    os.close(lifeline)
    if log is not None:
        os.close(printed)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    die_with_parent()


def _take_over_stdin() -> int:
    """Keep standard input for ourselves, as a channel: foreign code reads nothing from it."""
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


class _Supervisor:
    """The outer process: ends as the inner one does, and ends everything when the parent ends."""

    def __init__(
        self,
        inner: int,
        parent: int,
        lifeline: int,
        pumping: threading.Thread | None,
        scratch: Path | None,
    ) -> None:
        self._inner = inner
        self._parent = parent
        self._lifeline = lifeline
        self._pumping = pumping
        self._scratch = scratch
        self._overrun = False

    def run(self, processes: int | None) -> NoReturn:
        self._in_thread(self._watch_parent)
        if processes is not None:
            self._in_thread(lambda: self._watch_count(processes))
        ended, status = os.wait()
        while ended != self._inner:  # an orphan that was adopted
            ended, status = os.wait()
        # Helpers that end with their parent, such as multiprocessing's resource tracker, still have
        # to clean up behind it.
        limit = time.monotonic() + _TIME_TO_CLEAN_UP
        while descendants(os.getpid()) and time.monotonic() < limit:
            time.sleep(0.01)
        self._clean_up()
        code = TOO_MANY_PROCESSES if self._overrun else os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)

    def _watch_parent(self) -> None:
        # A fork of the parent may hold the lifeline open, hence the second condition.
        while os.getppid() == self._parent and not select.select([self._lifeline], [], [], 1.0)[0]:
            pass
        self._clean_up()
        os.killpg(0, signal.SIGKILL)

    def _watch_count(self, most: int) -> None:
        pause = _COUNT_EVERY
        while True:
            time.sleep(pause)
            began = time.thread_time()
            if len(descendants(os.getpid())) > most:
                break
            pause = max(_COUNT_EVERY, 100 * (time.thread_time() - began))
        self._overrun = True
        with contextlib.suppress(OSError):
            os.nice(-20)  # a fork bomb leaves little time to anybody else
        kill_descendants(os.getpid())

    def _clean_up(self) -> None:
        kill_descendants(os.getpid())
        if self._pumping is not None:
            self._pumping.join(_TIME_TO_CLEAN_UP)
        if self._scratch is not None:
            remove_folder(self._scratch)

    @staticmethod
    def _in_thread(function: Callable[[], None]) -> None:
        threading.Thread(target=function, daemon=True).start()


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux for a signal when our parent is killed alone (out of memory, say)."""
    outer = os.getppid()
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if os.getppid() != outer:
        os._exit(1)
