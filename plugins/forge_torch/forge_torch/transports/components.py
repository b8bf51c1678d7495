"""The transports this package brings, and their settings. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from forge_core import BuildContext, ConfigError, Settings, TransportComponent
from forge_local.devices import visible_devices


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


def check_cuda_ipc(settings: CudaIpcSettings, context: BuildContext) -> None:
    """Raises:
    ConfigError: this host has no CUDA device.
    """
    if not visible_devices():
        raise ConfigError(
            "transport.use: transport 'cuda_ipc' needs a CUDA device, and there is none here; "
            "use --transport shm"
        )


MEMORY = TransportComponent(
    name="memory",
    settings=MemorySettings,
    build="forge_torch.transports.memory:build",
    summary="weights copied once, within one process",
    reach="process",
    default=True,
)
SHM = TransportComponent(
    name="shm",
    settings=ShmSettings,
    build="forge_torch.transports.shm:build",
    summary="shared memory, between the processes of one host",
    reach="host",
    default=True,
)
CUDA_IPC = TransportComponent(
    name="cuda_ipc",
    settings=CudaIpcSettings,
    build="forge_torch.transports.cuda_ipc:build",
    check=check_cuda_ipc,
    summary="device memory, between the processes of one host with CUDA",
    reach="host",
    cuda_only=True,
    default=True,
)
