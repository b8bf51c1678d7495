"""Folders for the temporary files of processes that may be killed before they remove them."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_SETTLED = 60.0
"""Seconds after which a folder is locked if it will ever be."""


class Scratch:
    """A folder for temporary files, locked by this process until it is released or dies.

    Args:
        prefix: of its name.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        _locked(self._lock)

    def release(self) -> None:
        """Leave it to anybody to remove. Safe to call once."""
        os.close(self._lock)

    def remove(self) -> None:
        """Remove it, once it is released."""
        remove_folder(self.path)

    def remove_abandoned(self) -> None:
        """Remove the folders of the same prefix whose process was killed before it could."""
        for path in self.path.parent.glob(f"{self._prefix}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime < _SETTLED:
                    continue
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if _locked(folder):
                        remove_folder(path)
                finally:
                    os.close(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder with everything in it, also where permissions were taken away.

    What cannot be removed stays. Links are removed, not followed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir():
        with suppress(OSError):
            folder.chmod(stat.S_IRWXU)
        for parent, names, _ in os.walk(folder):  # each is opened up before the walk enters it
            for path in (Path(parent, name) for name in names):
                if not path.is_symlink():
                    with suppress(OSError):
                        path.chmod(stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: int) -> bool:
    """Lock a folder until its descriptor is closed; False where another process has."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
