"""What commands leave on this machine: processes, ports they listened on, shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forge_run.folder import RunFolder

SHARED_MEMORY = Path("/dev/shm")

_CHANNELS = f"{SHARED_MEMORY}/forge-"
"""Begins the path of what transports keep there; the run's name follows."""

_LISTENS = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""


class Leftovers:
    """Of the commands that are started, with whatever they start, in or below a folder.

    Args:
        folder: their working directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._before = _segments()
        self._ports: set[int] = set()

    def note_ports(self) -> set[int]:
        """Remember, and return, the TCP ports that their processes listen on now."""
        sockets = {link for process in self._processes() for link in _open_files(process)}
        ports = {port for port, socket in _listening().items() if socket in sockets}
        self._ports |= ports
        return ports

    def found(self, patience: float = 20.0) -> list[str]:
        """What is there still after so many seconds at most, in words."""
        deadline = time.monotonic() + patience
        while (left := list(self._left())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _left(self) -> Iterator[str]:
        for process in self._processes():
            with suppress(OSError):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield f"process {process.name}: {command}"
        for port in self._ports & _listening().keys():
            yield f"port {port}"
        for segment in self._unheld_segments():
            yield f"shared memory {segment}"

    def _processes(self) -> list[Path]:
        """Their folders in ``/proc``."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink().is_relative_to(self._folder):
                    found.append(process)
        return found

    def _unheld_segments(self) -> set[str]:
        """Files in shared memory that are new and belong to no process or other run."""
        # By the whole channel: another run on this machine may have begun in the same second.
        runs = [RunFolder(run).channel("") for run in self._folder.glob("**/runs/*")]
        new = {
            segment
            for segment in _segments() - self._before
            if not segment.startswith(f"{SHARED_MEMORY}/forge-")
            or any(run in segment for run in runs)
        }
        if new:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    held = _open_files(process)
                    mapped = _mapped(process)
                    new = {path for path in new - held if Path(path).stat().st_ino not in mapped}
        return new


def _segments() -> set[str]:
    # os.walk skips a folder that is removed while it is listed; Path.rglob raises.
    return {f"{folder}/{name}" for folder, _, names in os.walk(SHARED_MEMORY) for name in names}


def _mapped(process: Path) -> set[int]:
    """Inodes of what a process maps from there. A semaphore is renamed after it was mapped."""
    lines = (process / "maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if f" {SHARED_MEMORY}/" in line}


def _open_files(process: Path) -> set[str]:
    links = set()
    with suppress(OSError):
        for file in (process / "fd").iterdir():
            with suppress(OSError):
                links.add(os.readlink(file))
    return links


def _listening() -> dict[int, str]:
    """Port of each listening TCP socket -> the socket, as ``/proc/*/fd`` names it."""
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    found[int(fields[1].rpartition(":")[2], 16)] = f"socket:[{fields[9]}]"
    return found
