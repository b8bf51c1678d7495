"""The folder of one shared-memory channel: which processes use it, and removing it once none does.

Every end holds a shared lock on the file ``owners`` for as long as it is open. The kernel releases
it when the process dies, however it dies, so the process that gets the exclusive lock knows that no
end is left and may remove the folder: the last end that closes, or the next one that opens any
channel.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from forge_core import UsageError
from forge_torch.transports.shm_segment import try_lock

_PREFIX = f"forge-{os.getuid()}-"


class ChannelFolder:
    """A place on the channel. Made by opening, given back by ``leave`` (or at process exit).

    Args:
        root: folder in a memory file system.
        channel: name of the channel; any text.
        transport: whose it is, for messages.

    Raises:
        UsageError: ``root`` cannot be written, or something else has the channel's name in it.
    """

    def __init__(self, root: Path, channel: str, *, transport: str) -> None:
        if not os.access(root, os.W_OK | os.X_OK):
            raise UsageError(f"transport {transport}: cannot write to {root}; set transport.folder")
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", channel)[:40]
        digest = hashlib.blake2b(channel.encode(), digest_size=4).hexdigest()
        self.path = root / f"{_PREFIX}{readable}-{digest}"
        for left in filter(_is_ours, root.glob(f"{_PREFIX}*")):
            _remove_if_deserted(left)
        owners = _join(self.path, transport)
        # Also runs when the transport is forgotten or the interpreter ends without a close.
        self._finalizer = weakref.finalize(self, _leave, self.path, owners, os.getpid())

    @property
    def left(self) -> bool:
        return not self._finalizer.alive

    def leave(self) -> None:
        """Give the place up; the last to leave removes the folder. Safe to call twice."""
        self._finalizer()


def _join(path: Path, transport: str) -> BinaryIO:
    """Make the folder if need be and hold the shared lock on its ``owners``."""
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if path.exists() and not _is_ours(path):
            raise UsageError(
                f"transport {transport}: {path} is in the way and not a folder of this user"
            )
        try:
            owners = (path / "owners").open("ab")
        except FileNotFoundError:  # removed in between by a sweep
            continue
        fcntl.flock(owners, fcntl.LOCK_SH)
        if _is_still(owners, path / "owners"):
            return owners
        owners.close()


def _leave(path: Path, owners: BinaryIO, pid: int) -> None:
    if os.getpid() != pid:  # a forked child: the lock is the parent's
        return
    fcntl.flock(owners, fcntl.LOCK_UN)  # also for children forked meanwhile
    owners.close()
    _remove_if_deserted(path)


def _remove_if_deserted(path: Path) -> None:
    try:
        owners = (path / "owners").open("rb")
    except FileNotFoundError:
        with suppress(OSError):
            path.rmdir()  # only if empty: its maker died, or is about to notice
        return
    with owners:
        if not try_lock(owners, fcntl.LOCK_EX) or not _is_still(owners, path / "owners"):
            return
        for file in path.iterdir():
            if file.name != "owners":
                file.unlink(missing_ok=True)
        (path / "owners").unlink(missing_ok=True)  # last: it is what processes look for
        with suppress(OSError):
            path.rmdir()


def _is_ours(path: Path) -> bool:
    """Whether it is a folder of this user and no link: others can write to /dev/shm too."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _is_still(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that has that name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
