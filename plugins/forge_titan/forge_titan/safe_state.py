"""Reading torch's distributed checkpoints without running what their pickles say.

Its own reader unpickles ``.metadata`` and everything that is no tensor without limits: loading a
checkpoint that somebody else has written would run their code.
"""

from __future__ import annotations

import io
import pickle
from enum import Enum
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from forge_core import DataError

_ALLOWED = {
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "Path"),
    ("pathlib._local", "PosixPath"),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (filesystem.__name__, "_StorageInfo"),
}
"""What metadata consists of, beside types and classes of ``torch.distributed.checkpoint``."""


class SafeReader(filesystem.FileSystemReader):
    """Reads metadata of known classes only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """As the base class.

        Raises:
            DataError: it is damaged, or names something that metadata does not consist of.
        """
        path = self._get_metadata_path(kwargs.get("rank"))
        try:
            with self.fs.create_stream(path, "rb") as file:
                read: metadata.Metadata = _MetadataUnpickler(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError) as error:
            raise DataError(f"checkpoint {path}: cannot be read: {error}") from error
        storage = getattr(read, "storage_meta", None) or metadata.StorageMeta()
        storage.load_id = self.load_id
        read.storage_meta = storage
        return read


class SafePlanner(DefaultLoadPlanner):
    """Takes numbers, texts and containers for what is no tensor, and nothing else."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """As the base class.

        Raises:
            DataError: it holds anything else.
        """
        try:
            held = torch.load(value, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            name = read_item.storage_index.fqn
            raise DataError(
                f"checkpoint: {name} is damaged or holds more than numbers, and is not read"
            ) from error
        # What is known to be harmless goes on in the way that the base class has.
        safe = io.BytesIO()
        torch.save(held, safe)
        safe.seek(0)
        super().load_bytes(read_item, safe)


def _member(enumeration: Any, name: str) -> Any:
    """In place of ``getattr``, which Python before 3.11.4 pickles members of enumerations with."""
    if isinstance(enumeration, type) and issubclass(enumeration, Enum):
        return enumeration[name]
    raise pickle.UnpicklingError("it asks for builtins.getattr, which is not read")


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if "." not in name:
            if (module, name) in _ALLOWED:
                return super().find_class(module, name)
            if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
                return found
            found = getattr(metadata, name, None) if module == metadata.__name__ else None
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not read")
