"""Folders that are proved before they are used: ``manifest.json`` has each file's checksum.

Checkpoints and the model that a run makes are sealed when they are written. A reader
compares its files with the manifest first: a flipped bit would otherwise train, or answer, quietly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from forge_core.contracts.errors import DataError

MANIFEST = "manifest.json"

MODEL_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".txt", ".model", ".jinja", ".py"})
"""Endings of the files of a model folder. A trainer's state beside them is several times as large,
and only a resume reads it."""

_THREADS = 8


def seal(folder: Path) -> None:
    """Write the manifest of all files that are in a folder, subfolders included."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in paths if path != folder / MANIFEST]
    digests = _digests(folder, names)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "blake2b": digests[name]} for name in names
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def verify(folder: Path, *, model_only: bool = False) -> None:
    """Compare the files of a sealed folder with its manifest.

    A file that this process has read before, and that was not written to since, is not read again.

    Args:
        folder: a checkpoint, or the model that a run has made.
        model_only: only the files of a model folder, not a trainer's state beside them.

    Raises:
        DataError: a file is missing or differs, or the manifest cannot be read; names the file.
    """
    files = _manifest(folder)
    if files is None:
        raise DataError(f"{folder}: {MANIFEST} is missing or damaged")
    _compare(folder, _of_model(files) if model_only else files)


def verify_model(folder: Path) -> None:
    """The same for any model folder: one without a manifest, or with somebody else's, passes.

    Raises:
        DataError: as ``verify``.
    """
    _compare(folder, _of_model(_manifest(folder) or {}))


def _of_model(files: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: expected
        for name, expected in files.items()
        if Path(name).suffix in MODEL_SUFFIXES and Path(name).parent == Path()
    }


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Name -> what the manifest says of the file. None: there is none, or it is not one of ours."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{folder}: {MANIFEST} is damaged ({error})") from None
    try:
        data = json.loads(text)
    except ValueError:
        raise DataError(f"{folder}: {MANIFEST} is damaged (it is not JSON)") from None
    files = data.get("files") if isinstance(data, dict) else None
    return files if isinstance(files, dict) else None


def _compare(folder: Path, files: Mapping[str, Any]) -> None:
    for name, expected in sorted(files.items()):
        path = folder / name
        if not isinstance(expected, dict) or not {"bytes", "blake2b"} <= expected.keys():
            raise DataError(f"{folder}: {MANIFEST} is damaged (at {name})")
        if not path.is_file():
            raise DataError(f"{folder}: {name} is missing")
        if path.stat().st_size != expected["bytes"]:
            raise DataError(
                f"{folder}: {name} is damaged: it has {path.stat().st_size:,} bytes and "
                f"{MANIFEST} says {expected['bytes']:,}"
            )
    for name, digest in _digests(folder, sorted(files)).items():
        if digest != files[name]["blake2b"]:
            raise DataError(
                f"{folder}: {name} is damaged or was changed: its checksum is not the one in "
                f"{MANIFEST}"
            )


def _digests(folder: Path, names: list[str]) -> dict[str, str]:
    """Checksums of files, several at a time: hashing leaves Python's lock alone."""

    def digest(name: str) -> str:
        path = folder / name
        try:
            at = path.stat()
            return _digest(path, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checksum") as threads:
        return dict(zip(names, threads.map(digest, names), strict=True))


@lru_cache(maxsize=4096)
def _digest(path: Path, *_: int) -> str:
    """Checksum of a file. What else is given changes whenever the file does."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
