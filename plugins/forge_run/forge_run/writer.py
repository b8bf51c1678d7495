"""One process at a time writes a run folder: it holds a lock, and finds out when it has lost it.

The lock is the kernel's (``flock``) on the file ``writer.lock``, so that a process frees it however
it ends, and hosts that share the folder see each other's where their file system passes locks on.
The file names the holder. A holder compares the file with what it wrote before each of its own
writes: after somebody else took over (the file was deleted by hand, a lease of the file system ran
out while the process was stopped), it fails instead of writing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import uuid
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from forge_core import UsageError, WriterLost
from forge_run import durable

WRITER = "writer.lock"

PATIENCE = 1.0
"""Seconds in which a lock may pass from hand to hand, as when ``forge runs`` looks at it."""

PATIENCE_AFTER_DEATH = 10.0
"""Seconds that children of a holder that was killed may keep its lock."""

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""The file system has no locks: then only the file's content tells."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that writes a run folder.

    Args:
        host: name of its host.
        pid: its process id there.
        since: when it took the lock, in seconds since the epoch.
        token: tells two holders apart that have all else in common.
    """

    host: str
    pid: int
    since: float
    token: str

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} on {self.host} (since {since})"

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def state(self) -> str:
        """Of a process of this host: a letter as in ``ps``; "" if there is none or not known."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ""
        return status.rpartition(")")[2].split()[0]

    @property
    def is_gone(self) -> bool:
        """Whether it is known that the process has ended."""
        return self.is_here and self.state in ("", "Z", "X")


class Writer:
    """The right to write a run folder. A context manager; or call ``release``.

    Args:
        folder: the run folder.

    Raises:
        UsageError: another process holds it; names its pid and host.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / WRITER
        self._descriptor = self._locked()
        self.holder = Holder(
            host=socket.gethostname(), pid=os.getpid(), since=time.time(), token=uuid.uuid4().hex
        )
        self._record = json.dumps(asdict(self.holder)).encode()
        os.pwrite(self._descriptor, self._record, 0)
        os.ftruncate(self._descriptor, len(self._record))
        os.fsync(self._descriptor)
        durable.sync(folder)
        _held.add(self)
        if not self._has_lock:
            time.sleep(PATIENCE)  # of two that take over at once, the later one has it
            self.check()

    def check(self) -> None:
        """Make sure that the folder is still this process's to write.

        Raises:
            WriterLost: it is not.
        """
        try:
            found = self._path.read_bytes()
        except FileNotFoundError:
            raise WriterLost(
                f"{self.folder}: {WRITER}, the lock of this process (pid {os.getpid()}), was "
                "deleted; another process may write the folder now, so nothing more is written"
            ) from None
        except OSError:  # it cannot be told, and the kernel's lock is still held
            return
        if found != self._record:
            other = _parsed(found)
            raise WriterLost(
                f"{self.folder}: {other or 'another process'} has taken over this run folder from "
                f"pid {os.getpid()}, which writes nothing more"
            )

    def release(self) -> None:
        """Let others write the folder. Does nothing the second time."""
        if self._descriptor < 0:
            return
        try:
            if self._path.read_bytes() == self._record:
                self._path.unlink()
        except OSError:
            pass  # the folder was removed, or the file system is gone: the lock goes all the same
        descriptor, self._descriptor = self._descriptor, -1
        _held.discard(self)
        if self._has_lock:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for children forked meanwhile
        os.close(descriptor)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _locked(self) -> int:
        """A descriptor of the file, locked."""
        started = time.monotonic()
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._has_lock = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    self._has_lock = False
                elif error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    os.close(descriptor)
                    raise
                holder = _parsed(os.pread(descriptor, 4096, 0))
                if not self._has_lock and (holder is None or holder.is_gone):
                    return descriptor
                os.close(descriptor)
                gone = holder is not None and holder.is_gone
                patience = PATIENCE_AFTER_DEATH if gone else PATIENCE
                if time.monotonic() - started > patience:
                    raise UsageError(_refusal(self.folder, holder)) from None
                time.sleep(0.05)
                continue
            if _is_at(self._path, descriptor):
                return descriptor
            os.close(descriptor)  # the holder before deleted the file while it was being opened

    def _forget(self) -> None:
        """In a forked child: the lock is the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def holder_of(folder: Path) -> Holder | None:
    """Who writes a run folder at the moment; None: no process, or it cannot be known."""
    try:
        descriptor = os.open(folder / WRITER, os.O_RDONLY)
    except OSError:
        return None
    try:
        holder = _parsed(os.pread(descriptor, 4096, 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return None if holder is not None and holder.is_gone else holder
        return None
    finally:
        os.close(descriptor)


def check_free(folder: Path) -> None:
    """Check that no process writes a run folder.

    Raises:
        UsageError: somebody does; names pid and host.
    """
    holder = holder_of(folder)
    if holder is not None:
        raise UsageError(_refusal(folder, holder))


def _refusal(folder: Path, holder: Holder | None) -> str:
    if holder is None:
        return f"{folder} is being written by another process (its {WRITER} is locked)"
    line = f"{folder} is being written by {holder}"
    if not holder.is_here:
        return f"{line}; if that process is gone for good, delete {folder / WRITER}"
    if holder.state == "T":
        return (
            f"{line}, which is stopped: kill -CONT {holder.pid} lets it go on, "
            f"kill -KILL {holder.pid} ends it"
        )
    return f"{line}; wait for its end, or stop it first"


def _parsed(record: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(record))
    except (ValueError, TypeError):
        return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


_held: weakref.WeakSet[Writer] = weakref.WeakSet()


def _forget_all() -> None:
    for writer in list(_held):
        writer._forget()


os.register_at_fork(after_in_child=_forget_all)
