"""Logs of child processes: bounded on disk, and read from the end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from pathlib import Path

LOG_LIMIT = 16 << 20
"""Bytes of a log after which it becomes ``NAME.1``, in place of the ``NAME.1`` before it."""

_TAIL = 1 << 16
"""Most bytes that ``tail`` reads of a file."""


class RotatingLog:
    """A log that several processes may append to, of at most ``2 * limit`` bytes on disk.

    Args:
        path: of the newest part; the part before it is beside it, as ``NAME.1``.
        limit: bytes of each part.
    """

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._descriptor = self._open()

    def append(self, data: bytes) -> None:
        """Append what a process printed.

        Raises:
            OSError: it cannot be written.
        """
        if os.fstat(self._descriptor).st_size + len(data) > self._limit:
            self._rotate()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _rotate(self) -> None:
        """Begin a new file, unless another process already has."""
        full = self._descriptor
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(full, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(full)):
                self._path.replace(older(self._path))
        self._descriptor = self._open()
        os.close(full)  # and unlock it


def older(path: Path) -> Path:
    """Where the part of a log is that came before."""
    return path.with_name(path.name + ".1")


def pump(source: int, path: Path) -> None:
    """Append to a log what comes through a pipe, until its last writer is gone.

    What cannot be written is dropped: a full disk does not stop the process that prints.
    """
    log = None
    while data := os.read(source, _TAIL):
        with contextlib.suppress(OSError):
            log = log or RotatingLog(path)
            log.append(data)


def keep_bounded(path: Path, limit: int = LOG_LIMIT, every: float = 1.0) -> None:
    """Bound a log that this process appends to directly, in a thread that lasts as long as it.

    For processes that write to the file directly. The file must be open with ``O_APPEND``:
    its content is copied to ``NAME.1`` and then cut off, so that lines printed in between are lost.
    """

    def watch() -> None:
        while True:
            time.sleep(every)
            with contextlib.suppress(OSError):
                if path.stat().st_size > limit:
                    shutil.copyfile(path, older(path))
                    os.truncate(path, 0)

    threading.Thread(target=watch, name="forge-log", daemon=True).start()


def tail(path: Path | None, lines: int = 20, *, after: str | None = None) -> list[str]:
    """The last lines of a log, from at most its last 64 KiB (and those of the part before it).

    Args:
        path: None, or a file that need not exist: no lines.
        lines: most of them.
        after: beginning of a line; only lines behind the last such line count.
    """
    if path is None:
        return []
    text = _end(path)
    if len(text) < _TAIL:
        text = _end(older(path)) + text
    found = text.decode(errors="replace").splitlines()
    if after is not None:
        begin = max((at for at, line in enumerate(found) if line.startswith(after)), default=-1)
        found = found[begin + 1 :]
    return found[-lines:]


def _end(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-min(file.seek(0, os.SEEK_END), _TAIL), os.SEEK_END)
            return file.read(_TAIL)
    except OSError:
        return b""
