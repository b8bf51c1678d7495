"""Find and kill everything that a process has started, however deep and in whatever session."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

_KILL_LIMIT = 10.0
"""Seconds to go on killing. Only a process stuck in the kernel takes longer than milliseconds."""


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process the parent of descendants whose own parent has ended, or no longer.

    Without it they would become children of init, where nothing shows who started them. Linux
    only (``PR_SET_CHILD_SUBREAPER``, see prctl(2)). Children do not inherit the setting.
    """
    if sys.platform == "linux":
        import ctypes

        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, int(adopt))


def descendants(root: int) -> list[int]:
    """Ids of the processes below ``root`` that still run, parents before their children.

    Zombies do not run, but what they have started may.
    """
    children: dict[int, list[int]] = defaultdict(list)
    zombies = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended while we were looking
            # The command name, in parentheses, may hold anything, spaces and parentheses included.
            state, parent, *_ = entry.read_bytes().rpartition(b")")[2].split()
            pid = int(entry.parent.name)
            children[int(parent)].append(pid)
            if state in (b"Z", b"X"):
                zombies.add(pid)
    found = [root]
    for pid in found:  # grows as we go
        found += children.get(pid, [])
    return [pid for pid in found[1:] if pid not in zombies]


def kill_descendants(root: int) -> None:
    """Kill every process below ``root`` and return when none is left running.

    Looks again until a scan finds nothing, because a process may fork while it is being killed.
    ``root`` should have called ``adopt_orphans``, and lives on.
    """
    limit = time.monotonic() + _KILL_LIMIT
    while (running := descendants(root)) and time.monotonic() < limit:
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
