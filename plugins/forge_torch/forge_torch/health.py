"""Rows of ``forge doctor``: what the transports need of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from forge_core import Finding

GIB = 2**30
SHM_ENOUGH = GIB
"""Bytes; the ``shm`` transport keeps up to two sets of weights there."""


def shared_memory(folder: Path) -> Iterator[Finding]:
    """Room for weights that travel to other processes of this host."""
    if not folder.is_dir():
        text = f"{folder} is not there: weights cannot travel to other processes by shared memory"
        yield Finding("warning", "shared memory", text, "set transport.use=memory")
        return
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    text = f"{free / GIB:.1f} GiB free in {folder}"
    if free < SHM_ENOUGH:
        fix = f"mount -o remount,size=8G {folder}   (in a container: docker run --shm-size=8g)"
        yield Finding("warning", "shared memory", text, fix)
    else:
        yield Finding("ok", "shared memory", text)
