"""One file in shared memory, mapped as bytes. Written by one process at a time, read by many.

Its lock (``flock``, released by the kernel when a holder dies) says whether it is in use: shared by
each fetch under way, exclusive to a publish.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import warnings
import weakref
from pathlib import Path
from typing import BinaryIO

import torch

from forge_core import RunFailed

_MAP = mmap.MAP_SHARED | mmap.MAP_POPULATE


def try_lock(file: BinaryIO | int, kind: int) -> bool:
    """Take a lock (``LOCK_SH`` or ``LOCK_EX``) unless somebody's is in the way."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class SegmentWriter:
    """A segment to publish into. ``bytes`` are its contents, uint8 [size]; ``size`` grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        self.bytes = self._mapped()

    def try_lock(self) -> bool:
        """Take the segment for writing; False when a fetch still reads it."""
        return try_lock(self._file, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def reserve(self, size: int) -> None:
        """Make room for that many bytes, with some to spare as more will follow.

        Raises:
            RunFailed: the memory file system is full. (Writing to a mapping that it has no room
                for would kill the process, so room is taken first.)
        """
        if size <= self.size:
            return
        for wanted in (max(size, self.size * 3 // 2), size):
            try:
                os.posix_fallocate(self._file, self.size, wanted - self.size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            else:
                self.size = wanted
                self.bytes = self._mapped()
                return
        room = os.statvfs(self.path.parent)
        raise RunFailed(
            f"shared memory is full: {self.path.parent.parent} has "
            f"{room.f_bavail * room.f_frsize / 1e6:,.0f} MB left and the weights need a segment of "
            f"more than {size / 1e6:,.0f} MB (in a container, raise --shm-size)",
            component="transport shm",
        )

    def trim(self, size: int) -> None:
        """Give back what ``reserve`` took too much of."""
        if 0 < size < self.size:
            os.ftruncate(self._file, size)
            self.size = size

    def _mapped(self) -> torch.Tensor:
        if not self.size:
            return torch.empty(0, dtype=torch.uint8)
        # Populated at once: a page fault for each 4 KiB would cost more than the copy.
        return torch.frombuffer(mmap.mmap(self._file, self.size, flags=_MAP), dtype=torch.uint8)


class SegmentReader:
    """A segment to fetch from. ``bytes`` are its contents, uint8 [size], not writable."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            self.bytes = torch.empty(0, dtype=torch.uint8)
            if self.size:
                mapping = mmap.mmap(file.fileno(), self.size, flags=_MAP, prot=mmap.PROT_READ)
                with warnings.catch_warnings():  # torch would have tensors be writable
                    warnings.simplefilter("ignore", UserWarning)
                    self.bytes = torch.frombuffer(mapping, dtype=torch.uint8)
