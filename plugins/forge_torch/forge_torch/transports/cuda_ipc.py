"""Transport ``cuda_ipc``: weights stay on the device, between the processes of one host.

The channel is ``shm``'s folder, with its version files and locks. A segment holds no bytes, but the
CUDA IPC handles of the publisher's device buffers: publish copies from device to device, and a
reader's tensors are the publisher's memory. The memory dies with its process, and versions with it:
``holder-*`` is locked as long as the end that published is open, and without that lock its versions
are not there.

vLLM's own ``ipc`` weight transfer hands out the same handles, but the trainer drives it: it calls
into each engine, names and shapes first, and its memory is in use until every engine has answered;
a worker finds handles of its own GPU alone, and does not say what it loaded. Here versions are
published once for all readers, which keeps the contract: any trainer, any generator, any GPU, a
checksum of what was loaded, and readers that come late (a replica started again).
"""

from __future__ import annotations

import fcntl
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import torch

from forge_core import BuildContext, WeightManifest
from forge_tensors.checksum import RunningChecksum
from forge_torch.checks import check_cuda_ipc
from forge_torch.settings import CudaIpcSettings
from forge_torch.transports.device_buffers import CUDA_BUFFERS, Buffer, BufferPool
from forge_torch.transports.shm import Entry, Index, ShmTransport
from forge_torch.transports.shm_segment import try_lock


class CudaIpcTransport(ShmTransport):
    """One end of a channel whose weights lie on a device.

    Args:
        settings: only handles lie in the folder.
        context: for the channel.
        buffers: where device memory comes from.

    Raises:
        ConfigError: this host has no CUDA device.
    """

    name = "cuda_ipc"

    def __init__(
        self,
        settings: CudaIpcSettings,
        context: BuildContext,
        buffers: BufferPool = CUDA_BUFFERS,
    ) -> None:
        if buffers is CUDA_BUFFERS:
            check_cuda_ipc(settings, context)
        super().__init__(settings, context)
        self._buffers = buffers
        self._token = secrets.token_hex(4)
        self._holder: BinaryIO | None = None
        self._published: dict[Path, list[Buffer]] = {}

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield the publisher's own memory, on this process's current device. Do not write to it.

        Raises:
            KeyError: no such version, it was dropped, or the end that published it is gone.
            RunFailed: the device cannot reach the publisher's memory.
        """
        with self._held(version) as index:
            if not self._is_held(index.segment):
                raise self._gone(version)
            handles = json.loads((self._path / index.segment).read_text())
            opened = [self._buffers.open(handle) for handle in handles]
            try:
                for entry, flat in zip(index.tensors, opened, strict=True):
                    yield entry.name, flat.view(entry.torch_dtype).view(entry.shape)
            finally:
                for device in {flat.device for flat in opened}:
                    self._buffers.memory.wait(device)  # the reader's copies may be under way

    async def close(self) -> None:
        """Leave the channel, and take the versions published here along."""
        if not self._folder.left and self._holder is not None:
            for version in super()._versions():
                with suppress(FileNotFoundError):
                    if self._path / self._index(version).segment in self._published:
                        self._version_file(version).unlink()
            self._remove_spares()
            self._published.clear()  # what is still read is not used again
            fcntl.flock(self._holder, fcntl.LOCK_UN)
            self._holder.close()
            (self._path / f"holder-{self._token}").unlink()
        await super().close()

    def _versions(self) -> list[int]:
        held = []
        for version in super()._versions():
            with suppress(FileNotFoundError):  # dropped meanwhile by another end
                if self._is_held(self._index(version).segment):
                    held.append(version)
        return held

    def _written(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> Index:
        if self._holder is None:
            self._holder = (self._path / f"holder-{self._token}").open("wb")
            try_lock(self._holder, fcntl.LOCK_EX)
        self._remove_spares()
        segment = self._path / f"segment-{self._token}-{secrets.token_hex(4)}"
        table: list[Entry] = []
        taken: list[Buffer] = []
        try:
            with RunningChecksum() as running:
                for name, stored in self._stored(weights, taken, table):
                    running.add(name, stored)
            segment.write_text(json.dumps([buffer.handle for buffer in taken]))
        except BaseException:
            self._buffers.give_back(taken)
            raise
        self._published[segment] = taken
        manifest = WeightManifest(
            version=version,
            checksum=running.result(),
            tensors=len(table),
            bytes=sum(entry.bytes for entry in table),
        )
        return Index(manifest, segment.name, table)

    def _stored(
        self, weights: Iterable[tuple[str, torch.Tensor]], taken: list[Buffer], table: list[Entry]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        names = set()
        for name, weight in weights:
            if name in names:
                raise ValueError(f"tensor {name!r} is published twice in one version")
            names.add(name)
            buffer = self._buffers.take(weight)
            taken.append(buffer)
            dtype = str(weight.dtype).removeprefix("torch.")
            table.append(Entry(name, dtype, tuple(weight.shape), table[-1].end if table else 0))
            stored = buffer.bytes.view(weight.dtype).view(weight.shape)
            stored.copy_(weight.detach())
            # The checksum's thread, and readers, have streams of their own.
            self._buffers.memory.wait(stored.device)
            yield name, stored

    def _remove_spares(self) -> None:
        """Take back buffers that no version names and no process reads; clear up after the dead."""
        for version in super()._versions():
            with suppress(FileNotFoundError):
                if not self._is_held(self._index(version).segment):
                    self._version_file(version).unlink()
        for path in self._free_segments():
            with path.open("rb") as lock:
                if path in self._published and try_lock(lock, fcntl.LOCK_EX):
                    path.unlink()
                    self._buffers.give_back(self._published.pop(path))
                elif not self._is_held(path.name):
                    path.unlink()

    def _is_held(self, segment: str) -> bool:
        """Whether the end that published a segment is still open."""
        token = segment.split("-")[1]
        if token == self._token:
            return self._holder is not None
        try:
            with (self._path / f"holder-{token}").open("rb") as holder:
                return not try_lock(holder, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False
