"""A rank's process is two, so that somebody always knows how it ended.

Monarch starts the outer one, which runs no foreign code. It waits for the inner one, which becomes
the process that Monarch meant; then it kills what that has started, tells the caller how it
ended (``ends``), and ends in the same way itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import secrets
import select
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from forge_local.processes.supervision import die_with_parent

MODULE = "forge_monarch.bootstrap"

END = "FORGE_MONARCH_END"
"""Variable of the inner process: the name that the outer one tells its end under."""

KILL_LIMIT = 2.0
"""Seconds that killed processes get to be gone; one that waits for a device may take longer."""

CALLER_LIMIT = 2.0
"""Seconds to wait for the caller that asks how the process ended. None comes if the process died
before the caller knew it."""

_MONARCHS = "monarch._src.actor.bootstrap_main"
"""What Monarch runs in a process of its own."""


def main() -> None:
    """Become the inner of two processes, and run Monarch's part in it."""
    listener = socket.socket(socket.AF_UNIX)
    name = f"forge-{secrets.token_hex(8)}"
    listener.bind(f"\0{name}")  # in no file system: gone with the process
    listener.listen()
    inner = os.fork()
    if inner:
        _stand_by(inner, listener)
    _lead(0)
    listener.close()
    die_with_parent()
    os.environ[END] = name
    try:
        runpy.run_module(_MONARCHS, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 1)


def _leave(code: int) -> NoReturn:
    """End, without the seconds in which the interpreter takes engines down that are closed."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _stand_by(inner: int, listener: socket.socket) -> NoReturn:
    """Wait for the inner process; end as it does."""

    def terminate(number: int, frame: FrameType | None) -> None:
        os.kill(inner, signal.SIGKILL)

    _lead(inner)
    signal.signal(signal.SIGTERM, terminate)
    die_with_parent(signal.SIGTERM)
    # Until it is waited for, nothing else can have its number.
    end = os.waitid(os.P_PID, inner, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_group(inner)
    os.waitpid(inner, 0)
    assert end is not None
    if end.si_code == os.CLD_EXITED:
        _tell(listener, end.si_status)
        os._exit(end.si_status)
    _tell(listener, -end.si_status)
    with contextlib.suppress(OSError):  # SIGKILL has no other handler
        signal.signal(end.si_status, signal.SIG_DFL)
    os.kill(os.getpid(), end.si_status)
    os._exit(1)


def _lead(inner: int) -> None:
    """Have the inner process lead a group with all that it starts. Both see to it: neither knows
    which of them comes first."""
    with contextlib.suppress(OSError):
        os.setpgid(inner, inner)


def kill_group(leader: int) -> None:
    """Kill all processes of a group but Python's resource trackers: each of those ends by itself
    after the processes that it serves, when it has removed what they named in shared memory."""
    deadline = time.monotonic() + KILL_LIMIT
    while (members := _members(leader)) and time.monotonic() < deadline:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        time.sleep(0.005)  # and look again: they may have started more


def _members(leader: int) -> list[int]:
    """Those that run, without resource trackers."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return []
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) != leader or state in "ZX":
                continue
            if b"multiprocessing.resource_tracker" not in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def _tell(listener: socket.socket, code: int) -> None:
    """Send the exit code to every caller that has connected. A process may die between its first
    answer and the caller's connection, so the first one is waited for."""
    select.select([listener], [], [], CALLER_LIMIT)
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.send(str(code).encode())


if __name__ == "__main__":
    main()
