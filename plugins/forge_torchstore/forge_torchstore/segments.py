"""Memory that the processes of one host share: anonymous files, mapped by path.

A segment has no name in any file system. A process opens it through ``/proc`` of a process
that has it; the kernel frees it with the last process that maps it, however that one ends.
"""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

import torch

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of the size of every type."""

KEPT_MAPPINGS = 3
"""Segments that a reader keeps mapped, so that their pages are not looked up again each time."""


@lru_cache(maxsize=1)
def host_id() -> str:
    """The same in two processes if and only if each can open the other's segments.

    That is: one boot of one kernel, one space of process ids, and one network, as hosts that are
    played by network namespaces are to count as hosts.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net")]
    except OSError:  # not Linux: no process can open another's segments
        return f"{os.uname().nodename}-{os.getpid()}"
    return f"{boot}-{spaces[0]}-{spaces[1]}"


class _Mapping(mmap.mmap):
    """A mapping that knows its file, and closes it when the last tensor on it is gone."""

    file: int

    @classmethod
    def of(cls, file: int, size: int, *, write: bool) -> _Mapping:
        access = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        mapping = cls(file, size, prot=access)
        mapping.file = file
        weakref.finalize(mapping, os.close, file)
        return mapping

    def tensor(self) -> torch.Tensor:
        """All of its bytes. uint8 [size]"""
        with warnings.catch_warnings():  # torch would have tensors be writable
            warnings.simplefilter("ignore", UserWarning)
            flat = torch.frombuffer(self, dtype=torch.uint8)
        _mappings[flat.data_ptr()] = self
        return flat


_mappings: weakref.WeakValueDictionary[int, _Mapping] = weakref.WeakValueDictionary()
"""Address of each mapping in this process that other processes can open."""

_recent: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()
"""Segments lately read, by device and inode, the latest last."""


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """Where a tensor lies in a segment, in words that another process of the host understands.

    Args:
        process: id of a process that has the segment open.
        file: its file descriptor there.
        size: bytes of the segment to map.
        dtype: of the tensor.
        shape: of the tensor.
        stride: of the tensor, in elements.
        offset: of its first element in the segment, in elements.
    """

    process: int
    file: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> SharedTensor | None:
        """Describe a tensor; None if it does not lie in a segment."""
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return None
        mapping = _mappings.get(tensor.untyped_storage().data_ptr())
        if mapping is None:
            return None
        return cls(
            process=os.getpid(),
            file=mapping.file,
            size=len(mapping),
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
        )

    def open(self) -> torch.Tensor:
        """The tensor itself, in this process; not writable.

        Raises:
            OSError: the process that had the segment is gone.
        """
        flat = _opened(f"/proc/{self.process}/fd/{self.file}", self.size)
        return flat.view(self.dtype).as_strided(self.shape, self.stride, self.offset)


def _opened(path: str, size: int) -> torch.Tensor:
    status = os.stat(path)
    key = (status.st_dev, status.st_ino)
    flat = _recent.pop(key, None)
    if flat is None or len(flat) < size:
        flat = _Mapping.of(os.open(path, os.O_RDONLY), size, write=False).tensor()
    _recent[key] = flat
    while len(_recent) > KEPT_MAPPINGS:
        _recent.popitem(last=False)
    return flat


def forget_segments() -> None:
    """Let go of the segments that this process lately read."""
    _recent.clear()


class Segment:
    """Memory to publish from. It grows; what was stored stays where it is."""

    def __init__(self) -> None:
        self._file = os.memfd_create("forge-weights")
        weakref.finalize(self, os.close, self._file)
        self._flat = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def clear(self) -> None:
        """Begin again from the start; its pages stay, because fresh ones are slower."""
        self._used = 0

    def store(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Copy a tensor to the end of what is there. Returns its offset in bytes, and the copy."""
        begin, end = self._used, self._used + tensor.nbytes
        if end > len(self._flat):
            self._grow(end)
        copy = self._flat[begin:end].view(tensor.dtype).view(tensor.shape)
        copy.copy_(tensor)
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return begin, copy

    def part(self, begin: int, end: int) -> torch.Tensor:
        """Bytes from ``begin`` to ``end``. uint8 [end - begin]"""
        return self._flat[begin:end]

    def _grow(self, size: int) -> None:
        size = -(-max(size, 2 * len(self._flat)) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._file, size)
        self._flat = _Mapping.of(os.dup(self._file), size, write=True).tensor()
