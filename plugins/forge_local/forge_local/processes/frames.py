"""What travels between processes: frames of pickled data.

Code that the other process could not import (a notebook, a script, a test module) travels by value.
"""

from __future__ import annotations

import functools
import io
import os
import struct
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle

LENGTH = struct.Struct("<Q")
"""Length of the frame that follows, in bytes."""


def dumps(value: object) -> bytes:
    """Pickle for a process that has this one's ``sys.path``, but not its loaded modules."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump(value)
    finally:
        for module in pickler.by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return buffer.getvalue()


def frame(payload: bytes) -> bytes:
    """A payload with its length before it."""
    return LENGTH.pack(len(payload)) + payload


def read_frame(descriptor: int) -> bytes | None:
    """The next frame, or None at the end of the stream. Blocks."""
    header = _read_exactly(descriptor, LENGTH.size)
    return None if header is None else _read_exactly(descriptor, LENGTH.unpack(header)[0])


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size > 0:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, that decides by itself what has to travel by value."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.by_value: list[types.ModuleType] = []

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
            return NotImplemented  # as cloudpickle does, which takes long to find out
        self._consider(value)
        return super().reducer_override(value)

    def _consider(self, value: Any) -> None:
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        module = sys.modules.get(name or "")
        file = getattr(module, "__file__", None)
        if module is None or file is None or name == "__main__" or _importable(name, file):
            return
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self.by_value.append(module)


@functools.cache
def _importable(name: str, file: str) -> bool:
    """Whether importing ``name`` afresh, without ``sys.modules``, would load ``file``."""
    path = None
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:count]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    if spec is None or not spec.has_location or spec.origin is None:
        return spec is not None  # built in or frozen
    return Path(spec.origin).resolve() == Path(file).resolve()


def _find_spec(name: str, path: Any) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path)) is not None:
            return spec
    return None
