"""Finds the processes of a run's services, and disturbs them. Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from forge_local.processes.descendants import descendants
from forge_testing.runs import printing_to

PIDFD_GETFD = 438
"""System call number, the same on every architecture of Linux."""


def processes_of(service: str, run: Path) -> list[int]:
    """Ids of the processes of a service's replicas, engines' own included; sorted.

    They are known by the log that they print into: ``logs/SERVICE-REPLICA-rankR.log``. Where the
    controller judges rewards itself, its reward processes are those below it.
    """
    if service == "controller":
        return [os.getpid()]
    logs = f"{run / 'logs' / service}-"
    found = printing_to(lambda file: file.startswith(logs))
    if not found and service == "rewards":
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                if b"forge_rewards" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return sorted(found)


def has_any(service: str, run: Path) -> bool:
    """Whether the service has processes of its own, though there may be none at the moment."""
    return service in ("controller", "rewards") or any((run / "logs").glob(f"{service}-*"))


def kill(pids: list[int], draw: random.Random) -> str:
    """Kill one of them."""
    pid = draw.choice(pids)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return f"killed process {pid}"


def delay(pids: list[int], seconds: float) -> str:
    """Stop them all for some seconds. Returns when they go on."""
    if os.getpid() in pids:  # no other process could continue us
        code = "import os, sys, time; time.sleep(float(sys.argv[1])); os.kill(int(sys.argv[2]), 18)"
        subprocess.Popen([sys.executable, "-c", code, str(seconds), str(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        _signal(pids, signal.SIGSTOP)
        time.sleep(seconds)
        _signal(pids, signal.SIGCONT)
    return f"stopped {len(pids)} processes for {seconds:g} s"


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def disconnect(pids: list[int], draw: random.Random) -> str:
    """Shut down every connection of one of them.

    Raises:
        OSError: this process may not take hold of their sockets.
    """
    for pid in draw.sample(pids, len(pids)):
        try:
            count = sum(map(_shut, _sockets(pid)))
        except (ProcessLookupError, FileNotFoundError):  # it has just ended
            continue
        if count:
            return f"shut down {count} connections of process {pid}"
    return ""


def _sockets(pid: int) -> list[socket.socket]:
    """Our own handles of another process's sockets."""
    found = []
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            if not os.readlink(file).startswith("socket:"):
                continue
            descriptor = libc.syscall(PIDFD_GETFD, process, int(file.name), 0)
            if descriptor < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd: " + os.strerror(ctypes.get_errno()))
            found.append(socket.socket(fileno=descriptor))
    finally:
        os.close(process)
    return found


def _shut(connection: socket.socket) -> bool:
    with connection, contextlib.suppress(OSError):
        connection.getpeername()  # a socket that only listens has none
        connection.shutdown(socket.SHUT_RDWR)
        return True
    return False
