"""The child's end: a process that does not outlive its parent, and takes with it what it started.

Two processes in a session of their own. The outer one runs no foreign code, so that nothing keeps
it from killing everything below it once the parent is gone, kill -9 included. The inner one does
the work. What that starts stays below the outer process even when its own parent ends or it moves
to a session of its own, as sandboxes do (``timeout``, ``setsid``, ``start_new_session``).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from forge_core.processes.descendants import adopt_orphans, descendants, kill_descendants

_TIME_TO_CLEAN_UP = 1.0
"""Seconds that what the inner process has started may go on after it."""


def divide(lifeline: int, channels: Sequence[int]) -> None:
    """Become the inner of two processes. Returns in the inner one alone.

    Args:
        lifeline: descriptor of a socket whose other end the parent holds; neither ever writes.
        channels: descriptors of the inner process, that the outer one must not hold open.
    """
    parent = os.getppid()
    adopt_orphans()
    inner = os.fork()
    if inner:
        for channel in channels:
            os.close(channel)
        _supervise(inner, parent, lifeline)
    os.close(lifeline)
    die_with_parent()


def take_over_stdin() -> int:
    """Keep standard input for ourselves, as a channel: foreign code reads nothing from it."""
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _supervise(inner: int, parent: int, lifeline: int) -> NoReturn:
    """End as the inner process ends; end everything when the parent ends."""

    def watch() -> None:
        # A fork of the parent may hold the lifeline open, hence the second condition.
        while os.getppid() == parent and not select.select([lifeline], [], [], 1.0)[0]:
            pass
        kill_descendants(os.getpid())
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    ended, status = os.wait()
    while ended != inner:  # an orphan that was adopted
        ended, status = os.wait()
    # Helpers that end with their parent, such as multiprocessing's resource tracker, still have to
    # clean up behind it.
    limit = time.monotonic() + _TIME_TO_CLEAN_UP
    while descendants(os.getpid()) and time.monotonic() < limit:
        time.sleep(0.01)
    kill_descendants(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux for a signal when our parent is killed alone (out of memory, say)."""
    outer = os.getppid()
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if os.getppid() != outer:
        os._exit(1)
