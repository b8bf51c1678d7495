"""Calls that change files, counted, and disturbed at the n-th: see ``interpose.c``."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("interpose.c")
MODES = {"before": 1, "torn": 2, "after": 3, "fail": 4, "fail on": 5}
"""Killed before the call, after half of a write, after the call; or the call (and every later one)
fails with an errno."""

_library: ctypes.CDLL | None = None


class _State(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_long),
        ("at", ctypes.c_long),
        ("mode", ctypes.c_long),
        ("error", ctypes.c_long),
        ("last", ctypes.c_char * 480),
        ("kinds", ctypes.c_char * 8192),
    )


def missing() -> str:
    """Why calls cannot be disturbed here; empty: they can."""
    return "" if _library is not None else "there is no C compiler to build interpose.c with"


def build(folder: Path) -> Path | None:
    """Compile the library; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "interpose.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def loaded() -> None:
    """Take hold of the library this process was started with; what it starts does without."""
    global _library
    path = os.environ.pop("LD_PRELOAD", None)
    if path:
        _library = ctypes.CDLL(path)


class Fault:
    """What is to happen at the n-th call that changes a file below a folder.

    Args:
        below: the folder.
        at: number of the call, from 1; 0: calls are only counted.
        mode: of ``MODES``.
        error: errno where the call fails.
    """

    def __init__(self, below: Path, at: int = 0, mode: str = "before", error: int = 0) -> None:
        self._below = str(below).encode()
        self._memory = mmap.mmap(-1, ctypes.sizeof(_State))  # shared with children
        self._state = _State.from_buffer(self._memory)
        self._state.at, self._state.mode, self._state.error = at, MODES[mode], error

    def arm(self) -> None:
        """From now on, in this process; its children are left alone."""
        assert _library is not None
        _library.chaos_arm(ctypes.byref(self._state), self._below)

    @property
    def kinds(self) -> str:
        """First letter of each call so far (``w`` for a write), of whichever process was armed."""
        return bytes(self._state.kinds).decode()[: self._state.count]

    @property
    def where(self) -> str:
        """The call that was disturbed, such as ``rename /config.yaml``; empty: none was."""
        return bytes(self._state.last).decode(errors="replace")
