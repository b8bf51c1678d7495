"""Files and folders that are whole or not there at all, also after a crash or a power cut.

What is written goes beside its final place, is synced, and is then renamed: a reader sees the old
content or the new one, never a part.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from forge_core import ForgeError, RunFailed
from forge_core.contracts.blame import with_notes

ASIDE = ".aside"
"""Ending of a file that is being written. What a crash leaves of it is overwritten by the next."""


def write_text(path: Path, text: str) -> None:
    """Replace a file's content, in UTF-8.

    Raises:
        OSError: it could not be written; the file is as it was, and nothing is left beside it.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace a file's content by what the block writes, unless it raises.

    Raises:
        OSError: it could not be written; the file is as it was, and nothing is left beside it.
    """
    aside = path.with_name(path.name + ASIDE)
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def move(draft: Path, place: Path) -> None:
    """Put a folder whose files are written into a place where there is none.

    Raises:
        OSError: a file could not be synced or the folder not be renamed.
    """
    for path in [*draft.rglob("*"), draft]:
        sync(path)
    draft.rename(place)
    sync(place.parent)


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A folder to fill: put in its place when the block ends well, removed when it does not.

    What is there already is replaced. A process that is killed leaves ``.NAME.*.draft``, which
    the next attempt removes.

    Raises:
        RunFailed: something could not be written; says where, and how much space is left.
    """
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}.draft")
    try:
        for left in place.parent.glob(f".{place.name}.*.draft"):
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        if place.exists():
            remove(place)
        move(draft, place)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, ForgeError) or not isinstance(error, Exception):
            raise
        free = shutil.disk_usage(_existing(place)).free
        raise RunFailed(
            f"cannot write {place} ({free / 2**20:,.0f} MiB free there): {with_notes(error)}"
        ) from error


def remove(folder: Path) -> None:
    """Delete a folder, so that a part of it is never seen under its name."""
    gone = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
