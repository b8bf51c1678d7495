"""Memory of a CUDA device that other processes of the host can open, used again and again."""

from __future__ import annotations

import base64
import inspect
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from forge_core import RunFailed

_ARGUMENTS = list(inspect.signature(rebuild_cuda_tensor).parameters)
"""Names of what an exported buffer is opened with."""


def for_device(arguments: Sequence[Any], device: int) -> list[Any]:
    """What to open another process's buffer with.

    On the device that reads: the publisher's has another index here, or none. Without the event
    that torch exports with a buffer: a publish has synchronized before its version is known, and an
    event cannot be opened on every device that its memory can.

    Args:
        arguments: as exported.
        device: index of the device that reads.
    """
    changed = list(arguments)
    changed[_ARGUMENTS.index("storage_device")] = device
    changed[_ARGUMENTS.index("event_sync_required")] = False
    return changed


class SharedMemory(Protocol):
    """Memory that one process allocates and exports, and others open by the handle."""

    def allocate(self, size: int, like: torch.Tensor) -> torch.Tensor:
        """Uint8 [size], near the weight that will be copied into it."""
        ...

    def export(self, buffer: torch.Tensor) -> str:
        """A handle for other processes of this host.

        Raises:
            RunFailed: the device shares no memory between processes.
        """
        ...

    def open(self, handle: str) -> torch.Tensor:
        """The buffer of another process, uint8 [size].

        Raises:
            RunFailed: it cannot be reached from here.
        """
        ...

    def wait(self, device: torch.device) -> None:
        """Return when all that this process began on the device has ended."""
        ...


class CudaMemory:
    """Torch's own CUDA IPC: ``cudaIpcGetMemHandle`` and ``cudaIpcOpenMemHandle``."""

    def allocate(self, size: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=like.device if like.is_cuda else "cuda")

    def export(self, buffer: torch.Tensor) -> str:
        try:
            _, arguments = reduce_tensor(buffer)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise _failed("share device memory with other processes", error) from error
        return base64.b64encode(pickle.dumps(arguments)).decode()

    def open(self, handle: str) -> torch.Tensor:
        exported = pickle.loads(base64.b64decode(handle))
        arguments = for_device(exported, torch.cuda.current_device())
        try:
            opened: torch.Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise _failed(
                "open the trainer's device memory (the GPUs have no peer access, or the processes "
                "are not of one host)",
                error,
            ) from error
        return opened

    def wait(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)


def _failed(what: str, error: RuntimeError) -> RunFailed:
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return RunFailed(f"cannot {what}: {line}; use --transport shm", component="transport cuda_ipc")


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """``bytes`` is uint8 [size]; ``handle`` is what other processes open it by."""

    bytes: torch.Tensor
    handle: str


@dataclass(slots=True)
class BufferPool:
    """The buffers of this process. They stay allocated until it ends, and are handed out again.

    Torch counts the readers of an exported buffer for one reader that opens it once: a second one
    takes the (unsigned) count below zero, and torch never frees the buffer. Here locks say who
    reads, and no buffer is freed while a process may still have it mapped.
    """

    memory: SharedMemory
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free: dict[tuple[torch.device, int], list[Buffer]] = field(default_factory=dict)
    _all: dict[str, Buffer] = field(default_factory=dict)

    def take(self, weight: torch.Tensor) -> Buffer:
        """A buffer of the weight's size, on its device if that is one that can be shared."""
        with self._lock:
            for (device, size), free in self._free.items():
                near = weight.device == device or not weight.is_cuda
                if free and size == weight.nbytes and near:
                    return free.pop()
            fresh = self.memory.allocate(weight.nbytes, weight)
            buffer = Buffer(fresh, self.memory.export(fresh))
            self._all[buffer.handle] = buffer
            return buffer

    def give_back(self, buffers: list[Buffer]) -> None:
        """Let buffers be taken again. No process reads them."""
        with self._lock:
            for buffer in buffers:
                key = (buffer.bytes.device, buffer.bytes.numel())
                self._free.setdefault(key, []).append(buffer)

    def open(self, handle: str) -> torch.Tensor:
        """The buffer with that handle, of whichever process. See ``SharedMemory.open``."""
        own = self._all.get(handle)  # CUDA opens no handle in the process that made it
        return own.bytes if own is not None else self.memory.open(handle)


CUDA_BUFFERS = BufferPool(CudaMemory())
