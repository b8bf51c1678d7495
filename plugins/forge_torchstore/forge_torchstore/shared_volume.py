"""TorchStore's storage volumes, reached through shared memory where they are on one's own host.

TorchStore 0.1 sends tensors as bytes in Monarch's messages. ``SharedBuffer`` is a transport buffer
of TorchStore's that says where a tensor lies instead, when it lies in a segment and the one who is
to read it is on the same host; else it does what TorchStore's own does. Volumes, index and
resharding do not notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torchstore.transport.buffers as buffers
from torchstore.storage_volume import StorageVolume

from forge_torchstore.segments import SharedTensor, host_id


class SharedBuffer(buffers.MonarchTransportBuffer):  # type: ignore[misc]
    """Carries a tensor to a process of the host ``reader``."""

    def __init__(self, tensor: torch.Tensor | None, reader: str) -> None:
        super().__init__()
        self.tensor = tensor
        self.reader = reader

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.tensor is not None and self.reader == host_id():
            state["tensor"] = SharedTensor.of(self.tensor) or self.tensor
        return state

    async def read_into(self, tensor: torch.Tensor | None = None) -> torch.Tensor:
        return await self.attached().read_into(tensor)  # type: ignore[no-any-return]

    def attached(self) -> buffers.MonarchTransportBuffer:
        """TorchStore's own buffer with the tensor in it, once this one has arrived.

        Raises:
            OSError: the process that held the tensor is gone.
        """
        plain = buffers.MonarchTransportBuffer()
        plain.update(self)
        if isinstance(self.tensor, SharedTensor):
            plain.tensor = self.tensor.open()
        return plain


class SharedVolume:
    """A storage volume whose puts and gets use shared memory where they can.

    Args:
        volume: handle on TorchStore's actor.
        host: where it lives, as ``host_id`` says.
    """

    def __init__(self, volume: Any, host: str) -> None:
        self._volume = volume
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)

    @property
    def put(self) -> _Endpoint:
        return _Endpoint(self._put)

    @property
    def get(self) -> _Endpoint:
        return _Endpoint(self._get)

    async def _put(self, key: str, buffer: Any, request: Any) -> None:
        shared = SharedBuffer(buffer.tensor, reader=self._host)
        await self._volume.put.call_one(key, shared, request)

    async def _get(self, key: str, buffer: Any, request: Any) -> Any:
        empty = SharedBuffer(None, reader=host_id())
        return (await self._volume.get.call_one(key, empty, request)).attached()


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """What TorchStore calls of a handle's endpoint."""

    call_one: Callable[[str, Any, Any], Awaitable[Any]]


@lru_cache(maxsize=1)
def usable() -> bool:
    """Whether the installed TorchStore sends tensors as bytes, in buffers of the shape known here.

    With RDMA, and from the version on that has shared memory of its own, it is left to itself.
    """
    if not hasattr(buffers, "MonarchTransportBuffer") or buffers.rdma_available():
        return False
    known = ["self", "key", "transport_buffer", "request"]
    return all(
        list(inspect.signature(endpoint._method).parameters) == known
        for endpoint in (StorageVolume.put, StorageVolume.get)
    )
