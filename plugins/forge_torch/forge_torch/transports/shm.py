"""Transport ``shm``: weights in POSIX shared memory, for the processes of one host.

A channel is a folder in a memory file system:

- ``owners``: locked by every open end (``shm_folder``);
- ``writer``: locked by the end that is publishing; holds the last version published;
- ``segment-*``: the bytes, each tensor at a multiple of 64 (``shm_segment``);
- ``version-N.json``: says in which segment version N lies and where its tensors are.

A version exists from the moment its file is renamed into place until that file is removed, so a
publisher killed at any point leaves whole versions only. A segment is written only while no version
names it and no fetch holds it, so a reader never sees it change. Segments are used again, because
the pages of a fresh one are several times slower to fill.
"""

from __future__ import annotations

import fcntl
import json
import math
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from forge_core import BuildContext, ForgeError, RunFailed, WeightManifest
from forge_tensors.checksum import RunningChecksum
from forge_torch.settings import ShmSettings
from forge_torch.transports.narrowed import narrowed
from forge_torch.transports.shm_folder import ChannelFolder
from forge_torch.transports.shm_segment import SegmentReader, SegmentWriter, try_lock

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of the size of every type."""

SPARE_SEGMENTS = 2
"""Segments without a version that are kept for the next ones."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies in its segment. ``dtype`` is its name in torch, ``offset`` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def end(self) -> int:
        return self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class Index:
    """What a version file says."""

    manifest: WeightManifest
    segment: str
    tensors: list[Entry]

    @property
    def size(self) -> int:
        """Bytes of the segment that the version takes."""
        return self.tensors[-1].end if self.tensors else 0

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Index:
        """
        Raises:
            RunFailed: it is damaged.
        """
        try:
            data = json.loads(text)
            tensors = [
                Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in data["tensors"]
            ]
            return cls(WeightManifest(**data["manifest"]), data["segment"], tensors)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFailed(
                f"transport shm: the index of published weights is damaged: {error}"
            ) from error


class ShmTransport:
    """One end of a channel in shared memory.

    Args:
        settings: where the channel's folder is made, and the type that weights are published in.
        context: ends with the same channel on the same host see the same versions.
    """

    name = "shm"

    def __init__(self, settings: ShmSettings, context: BuildContext) -> None:
        self._dtype = settings.dtype
        self._folder = ChannelFolder(settings.folder, context.channel, transport=self.name)
        self._writers: dict[Path, SegmentWriter] = {}
        self._readers: dict[Path, SegmentReader] = {}

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        """Copy the weights into a segment, then make it the version's. See ``Transport``.

        Raises:
            ValueError: the version is not higher than the last, or a name comes twice.
            RunFailed: shared memory is full.
            ForgeError: another end is publishing at this moment.
        """
        with self._writing() as last:
            highest = max([_last_version(last), *self._versions()])
            if version <= highest:
                raise ValueError(
                    f"version {version} is not higher than {highest}, the last published"
                )
            index = self._written(version, narrowed(weights, self._dtype))
            aside = self._path / "version.aside"
            aside.write_text(index.dump())
            aside.rename(self._version_file(version))
            last.seek(0)
            last.write(f"{version:<20}".encode())
            last.flush()
            self._remove_spares()
        return index.manifest

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield views into shared memory, valid until the next one is asked for. Not writable.

        Raises:
            KeyError: no such version, or it was dropped.
        """
        with self._held(version) as index:
            segment = self._reader(self._path / index.segment, index.size)
            for entry in index.tensors:
                flat = segment.bytes[entry.offset : entry.end]
                yield entry.name, flat.view(entry.torch_dtype).view(entry.shape)

    async def drop(self, version: int) -> None:
        """Forget a version; its segment is used again once no fetch reads it."""
        self._version_file(version).unlink(missing_ok=True)

    async def versions(self) -> list[int]:
        """Versions that can be fetched, lowest first."""
        return self._versions()

    async def close(self) -> None:
        """Leave the channel; the last end removes its folder. Views stay valid until let go."""
        self._folder.leave()
        self._writers.clear()
        self._readers.clear()

    @property
    def _path(self) -> Path:
        if self._folder.left:
            raise RuntimeError("the transport is closed")
        return self._folder.path

    def _written(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> Index:
        """Copy the weights, and say where they lie."""
        segment = self._take_segment()
        table: list[Entry] = []
        try:
            with RunningChecksum() as running:
                for name, stored in _stored(weights, segment, table):
                    running.add(name, stored)
        finally:
            # Before the version is known: from then on its readers want the lock.
            segment.unlock()
        manifest = WeightManifest(
            version=version,
            checksum=running.result(),
            tensors=len(table),
            bytes=sum(entry.bytes for entry in table),
        )
        index = Index(manifest, segment.path.name, table)
        segment.trim(index.size)
        return index

    def _index(self, version: int) -> Index:
        return Index.parse(self._version_file(version).read_text(errors="replace"))

    def _version_file(self, version: int) -> Path:
        return self._path / f"version-{version}.json"

    def _versions(self) -> list[int]:
        files = self._path.glob("version-*.json")
        return sorted(int(file.stem.removeprefix("version-")) for file in files)

    @contextmanager
    def _writing(self) -> Iterator[BinaryIO]:
        """Be the one end that publishes."""
        path = self._path / "writer"
        path.touch()
        with path.open("r+b") as file:
            if not try_lock(file, fcntl.LOCK_EX):
                raise ForgeError(
                    f"transport {self.name}: another end is publishing on {self._path.name}"
                )
            try:
                yield file
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def _held(self, version: int) -> Iterator[Index]:
        """Hold a version's segment: no process writes to it until the block ends."""
        file = self._version_file(version)
        try:
            text = file.read_text(errors="replace")
            index = Index.parse(text)
            lock = (self._path / index.segment).open("rb")
        except FileNotFoundError:
            raise self._gone(version) from None
        with lock:
            # A version's segment is removed or taken for writing only after the version is dropped.
            if not try_lock(lock, fcntl.LOCK_SH) or not _still_reads(file, text):
                raise self._gone(version)
            try:
                yield index
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child forked meanwhile

    def _gone(self, version: int) -> KeyError:
        return KeyError(f"no version {version} (there are: {self._versions()})")

    def _reader(self, path: Path, size: int) -> SegmentReader:
        """The mapping of a segment, kept from fetch to fetch."""
        self._readers = {p: reader for p, reader in self._readers.items() if p.exists()}
        if path not in self._readers or self._readers[path].size < size:
            self._readers[path] = SegmentReader(path)
        return self._readers[path]

    def _take_segment(self) -> SegmentWriter:
        """A segment that no version names and no fetch reads, or else a new one; locked."""
        for path in self._free_segments():
            segment = self._writers.get(path) or SegmentWriter(path)
            self._writers[path] = segment
            if segment.try_lock():
                return segment
        sizes = [path.stat().st_size for path in self._path.glob("segment-*")]
        path = self._path / f"segment-{secrets.token_hex(4)}"  # a name is never used again
        segment = self._writers[path] = SegmentWriter(path)
        segment.try_lock()
        segment.reserve(max(sizes, default=0))
        return segment

    def _free_segments(self) -> list[Path]:
        """Segments that no version names, largest first."""
        named = set()
        for version in self._versions():
            with suppress(FileNotFoundError):  # dropped meanwhile by another end
                named.add(self._index(version).segment)
        free = [path for path in self._path.glob("segment-*") if path.name not in named]
        return sorted(free, key=lambda path: (-path.stat().st_size, path.name))

    def _remove_spares(self) -> None:
        for path in self._free_segments()[SPARE_SEGMENTS:]:
            path.unlink()
            self._writers.pop(path, None)


def _stored(
    weights: Iterable[tuple[str, torch.Tensor]], segment: SegmentWriter, table: list[Entry]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Copy each weight into the segment, and say in ``table`` where it lies."""
    names = set()
    offset = 0
    for name, weight in weights:
        if name in names:
            raise ValueError(f"tensor {name!r} is published twice in one version")
        names.add(name)
        dtype = str(weight.dtype).removeprefix("torch.")
        entry = Entry(name, dtype, tuple(weight.shape), offset)
        segment.reserve(entry.end)
        stored = segment.bytes[offset : entry.end].view(weight.dtype).view(weight.shape)
        stored.copy_(weight.detach())
        yield name, stored
        table.append(entry)
        offset = -(-entry.end // ALIGNMENT) * ALIGNMENT


def _still_reads(file: Path, text: str) -> bool:
    try:
        return file.read_text(errors="replace") == text
    except FileNotFoundError:
        return False


def _last_version(file: BinaryIO) -> int:
    file.seek(0)
    return int(file.read() or b"-1")
