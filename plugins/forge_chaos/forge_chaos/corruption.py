"""One flipped bit, in a checkpoint or in weights on their way."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def flip_bit(file: Path, draw: random.Random) -> str:
    """Flip one bit of a file in place."""
    size = file.stat().st_size
    place, bit = draw.randrange(size), draw.randrange(8)
    with file.open("r+b") as data:
        data.seek(place)
        byte = data.read(1)[0] ^ (1 << bit)
        data.seek(place)
        data.write(bytes([byte]))
    return f"flipped bit {bit} of byte {place} of {file}"


def corrupt_checkpoint(folder: Path, draw: random.Random) -> str:
    """Flip a bit of one of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    return flip_bit(draw.choice(files), draw)


def corrupt_weights(run: Path, draw: random.Random, goes_on: Callable[[], bool]) -> str:
    """Flip a bit of the next weights of this run that appear in shared memory.

    Args:
        run: its folder.
        draw: decides the bit.
        goes_on: whether it is still worth waiting.

    Returns:
        what was done; empty if none appeared.
    """
    before = set(_segments(run))
    while goes_on():
        for file in set(_segments(run)) - before:
            try:
                return flip_bit(file, draw)
            except (OSError, ValueError, IndexError):  # not written yet, or gone already
                continue
        time.sleep(0.0005)
    return ""


def _segments(run: Path) -> list[Path]:
    # os.walk skips a folder that is removed while it is listed; Path.rglob raises.
    return [
        Path(folder, name)
        for folder, _, names in os.walk(SHARED_MEMORY)
        for name in names
        if run.name in f"{folder}/{name}"
    ]
