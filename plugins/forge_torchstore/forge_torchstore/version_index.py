"""What a published version consists of, and how its tensors are found in the store."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Packed:
    """A whole tensor among others in one flat tensor of bytes.

    Args:
        pack: number of the pack, among those of its rank.
        offset: where it begins, in bytes.
    """

    rank: int
    pack: int
    offset: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a version.

    Args:
        name: as published.
        dtype: of its elements.
        shape: of the whole tensor.
        packed: where it lies; None if it is in the store by itself, as shards.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    packed: Packed | None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Index:
    """One attempt to publish a version. Its keys begin with ``attempt`` and no other's do.

    Dots part a key where TorchStore's index does, so that an attempt's keys can be listed.
    """

    attempt: str
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def key(self, entry: Entry) -> str:
        """The key under which TorchStore has the entry, or the pack it is in."""
        if entry.packed is None:
            return tensor_key(self.attempt, entry.name)
        return pack_key(self.attempt, entry.packed.rank, entry.packed.pack)


def tensor_key(attempt: str, name: str) -> str:
    return f"{attempt}.tensor.{name}"


def pack_key(attempt: str, rank: int, pack: int) -> str:
    return f"{attempt}.pack.{rank}.{pack}"
