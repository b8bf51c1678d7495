"""Transport ``memory``: trainer and generator in one process share one copy of each version."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from forge_core import BuildContext, WeightManifest
from forge_tensors.checksum import RunningChecksum
from forge_torch.settings import MemorySettings
from forge_torch.transports.narrowed import narrowed

SPARE_COPIES = 2
"""Buffers of dropped versions kept for the next ones: fresh memory is several times slower."""


@dataclass(slots=True)
class _Copy:
    """One version's tensors, by name in the order published."""

    tensors: dict[str, torch.Tensor]
    readers: int = 0
    dropped: bool = False


@dataclass(slots=True, weakref_slot=True)
class _Channel:
    """What all ends on one channel share; it lives as long as one of them does."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    copies: dict[int, _Copy] = field(default_factory=dict)
    spare: list[dict[str, torch.Tensor]] = field(default_factory=list)
    last: int = -1

    def release(self, copy: _Copy) -> None:
        """Keep the buffers of a copy that is no longer reachable. The lock is held."""
        if copy.dropped and not copy.readers and len(self.spare) < SPARE_COPIES:
            self.spare.append(copy.tensors)


_channels: weakref.WeakValueDictionary[str, _Channel] = weakref.WeakValueDictionary()
_channels_lock = threading.Lock()


class MemoryTransport:
    """Copies weights into host memory on publish; a fetch yields views of that copy.

    Args:
        settings: the type that weights are published in.
        context: ends with the same channel see the same versions.
    """

    def __init__(self, settings: MemorySettings, context: BuildContext) -> None:
        self._dtype = settings.dtype
        with _channels_lock:
            self._shared: _Channel | None = _channels.setdefault(context.channel, _Channel())

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        """Take a copy of the weights in host memory. See ``forge_core.Transport``.

        Raises:
            ValueError: the version is not higher than the last, or a name comes twice.
        """
        channel = self._channel
        with channel.lock:
            if version <= channel.last:
                raise ValueError(
                    f"version {version} is not higher than {channel.last}, the last published"
                )
            buffers = channel.spare.pop() if channel.spare else {}
        tensors: dict[str, torch.Tensor] = {}
        with RunningChecksum() as running:
            for name, copy in _stored(narrowed(weights, self._dtype), buffers, tensors):
                running.add(name, copy)
        with channel.lock:
            channel.copies[version] = _Copy(tensors)
            channel.last = version
        return WeightManifest(
            version=version,
            checksum=running.result(),
            tensors=len(tensors),
            bytes=sum(tensor.nbytes for tensor in tensors.values()),
        )

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield views of a version's tensors, valid until the next one is asked for.

        Raises:
            KeyError: no such version, or it was dropped.
        """
        channel = self._channel
        with channel.lock:
            if version not in channel.copies:
                raise KeyError(f"no version {version} (there are: {sorted(channel.copies)})")
            copy = channel.copies[version]
            copy.readers += 1
        try:
            for name, tensor in copy.tensors.items():
                yield name, tensor
        finally:
            with channel.lock:
                copy.readers -= 1
                channel.release(copy)

    async def drop(self, version: int) -> None:
        """Forget a version; its memory is used again once no fetch reads it."""
        channel = self._channel
        with channel.lock:
            copy = channel.copies.pop(version, None)
            if copy is not None:
                copy.dropped = True
                channel.release(copy)

    async def versions(self) -> list[int]:
        """Versions that can be fetched, lowest first."""
        return sorted(self._channel.copies)

    async def close(self) -> None:
        """Let go of the channel; with the last end, its memory is given back."""
        self._shared = None

    @property
    def _channel(self) -> _Channel:
        if self._shared is None:
            raise RuntimeError("the transport is closed")
        return self._shared


def _stored(
    weights: Iterable[tuple[str, torch.Tensor]],
    buffers: dict[str, torch.Tensor],
    tensors: dict[str, torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Copy each weight into ``tensors``, into a buffer of its name and shape where there is one."""
    for name, weight in weights:
        if name in tensors:
            raise ValueError(f"tensor {name!r} is published twice in one version")
        buffer = buffers.pop(name, None)
        if buffer is None or buffer.shape != weight.shape or buffer.dtype != weight.dtype:
            buffer = torch.empty(weight.shape, dtype=weight.dtype)
        tensors[name] = buffer.copy_(weight.detach())
        yield name, buffer
