"""The transports this package brings, and their settings. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from forge_core import BuildContext, ConfigError, Settings, TransportComponent
from forge_core.runtimes.devices import visible_devices

if TYPE_CHECKING:
    from forge_torch.transports.cuda_ipc import CudaIpcTransport
    from forge_torch.transports.memory import MemoryTransport
    from forge_torch.transports.shm import ShmTransport


class MemorySettings(Settings):
    """Memory of one process."""

    dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="type that weights travel in, where the generator keeps another than the "
        "trainer; null: the trainer's",
    )


class ShmSettings(MemorySettings):
    """Shared memory of one host."""

    folder: Path = Field(
        Path("/dev/shm"), description="memory file system in which the channel's segments are kept"
    )


class CudaIpcSettings(MemorySettings):
    """Device memory, shared with the processes of one host."""

    folder: Path = Field(
        Path("/dev/shm"), description="memory file system in which the memory's handles are kept"
    )


def build_memory(settings: MemorySettings, context: BuildContext) -> MemoryTransport:
    from forge_torch.transports.memory import MemoryTransport

    return MemoryTransport(context.channel, dtype=settings.dtype)


def build_shm(settings: ShmSettings, context: BuildContext) -> ShmTransport:
    from forge_torch.transports.shm import ShmTransport

    return ShmTransport(context.channel, folder=settings.folder, dtype=settings.dtype)


def check_cuda_ipc(settings: CudaIpcSettings, context: BuildContext) -> None:
    """Raises:
    ConfigError: this host has no CUDA device.
    """
    if not visible_devices():
        raise ConfigError(
            "transport.use: transport 'cuda_ipc' needs a CUDA device, and there is none here; "
            "use --transport shm"
        )


def build_cuda_ipc(settings: CudaIpcSettings, context: BuildContext) -> CudaIpcTransport:
    """Raises:
    ConfigError: as ``check_cuda_ipc``.
    """
    check_cuda_ipc(settings, context)
    from forge_torch.transports.cuda_ipc import CudaIpcTransport

    return CudaIpcTransport(context.channel, folder=settings.folder, dtype=settings.dtype)


MEMORY = TransportComponent(
    name="memory",
    settings=MemorySettings,
    build=build_memory,
    summary="weights copied once, within one process",
    reach="process",
    default=True,
)
SHM = TransportComponent(
    name="shm",
    settings=ShmSettings,
    build=build_shm,
    summary="shared memory, between the processes of one host",
    reach="host",
    default=True,
)
CUDA_IPC = TransportComponent(
    name="cuda_ipc",
    settings=CudaIpcSettings,
    build=build_cuda_ipc,
    check=check_cuda_ipc,
    summary="device memory, between the processes of one host with CUDA",
    reach="host",
    cuda_only=True,
    default=True,
)
