"""Transport ``cuda_ipc``: on a device if there is one, and its versions and buffers without."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from forge_core import BuildContext, ConfigError, Forge, Selection, Transport, TransportComponent
from forge_testing.conformance.transport import TransportConformance, expect, numbered
from forge_testing.context import bare_context
from forge_torch.plugin import CUDA_IPC
from forge_torch.settings import CudaIpcSettings
from forge_torch.transports.cuda_ipc import CudaIpcTransport
from forge_torch.transports.device_buffers import BufferPool, for_device


class FileMemory:
    """Stands in for a device: files that processes map."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def allocate(self, size: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def export(self, buffer: torch.Tensor) -> str:
        with tempfile.NamedTemporaryFile(delete=False, dir=self.folder) as file:
            file.truncate(buffer.numel())
        if buffer.numel():
            buffer.set_(self._mapped(file.name))  # type: ignore[call-overload]
        return file.name

    def open(self, handle: str) -> torch.Tensor:
        return self._mapped(handle)

    def wait(self, device: torch.device) -> None:
        pass

    def _mapped(self, path: str) -> torch.Tensor:
        size = Path(path).stat().st_size
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


pools: dict[Path, BufferPool] = {}


def build_on_files(settings: CudaIpcSettings, context: BuildContext) -> CudaIpcTransport:
    pool = pools.setdefault(settings.folder, BufferPool(FileMemory(settings.folder)))
    return CudaIpcTransport(settings, context, pool)


ON_FILES = TransportComponent(
    name="files", settings=CudaIpcSettings, build=build_on_files, summary="files", reach="host"
)


class TestVersionsAndBuffers(TransportConformance):
    crosses_processes = True
    outlives_publisher = False

    @pytest.fixture
    def selection(self, tmp_path: Path) -> Selection[Transport]:
        return Selection(
            family="transport", component=ON_FILES, settings=CudaIpcSettings(folder=tmp_path)
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestCudaIpc(TransportConformance):
    crosses_processes = True
    outlives_publisher = False

    @pytest.fixture
    def selection(self, tmp_path: Path) -> Selection[Transport]:
        return Selection(
            family="transport", component=CUDA_IPC, settings=CudaIpcSettings(folder=tmp_path)
        )

    async def test_tensors_stay_on_the_device(self, writer: Transport, reader: Transport) -> None:
        await writer.publish(0, [("w", torch.ones(3, device="cuda"))])
        async for _, tensor in reader.fetch(0):
            assert tensor.is_cuda


async def test_two_sets_of_buffers_alternate_also_for_the_next_channel(tmp_path: Path) -> None:
    pool = BufferPool(FileMemory(tmp_path))
    for channel in ("a", "b"):
        end = CudaIpcTransport(
            CudaIpcSettings(folder=tmp_path), bare_context(channel=channel), pool
        )
        for version in range(6):
            await end.publish(version, numbered(version).items())
            await expect(end, version, numbered(version))
            await end.drop(version - 1)
        await end.close()
    assert len(list(tmp_path.glob("tmp*"))) == 2 * len(numbered(0))
    assert not list(tmp_path.glob("forge-*"))


async def test_a_buffer_that_is_read_is_not_written_to(tmp_path: Path) -> None:
    pool = BufferPool(FileMemory(tmp_path))
    end = CudaIpcTransport(CudaIpcSettings(folder=tmp_path), bare_context(channel="c"), pool)
    await end.publish(0, [("w", torch.zeros(8))])
    fetch = end.fetch(0)
    _, tensor = await anext(fetch)
    await end.close()
    other = CudaIpcTransport(CudaIpcSettings(folder=tmp_path), bare_context(channel="d"), pool)
    await other.publish(0, [("w", torch.ones(8))])
    assert (tensor == 0).all()
    await fetch.aclose()  # type: ignore[attr-defined]
    await other.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_without_a_gpu_it_is_refused_before_the_start() -> None:
    with pytest.raises(ConfigError, match=r"'cuda_ipc' needs a CUDA device.*--transport shm"):
        Forge().check("quickstart", ["transport.use=cuda_ipc"])


def test_a_buffer_is_opened_on_the_readers_device_and_waits_for_no_event() -> None:
    """The publisher has synchronized; its event may not be openable on another device."""
    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    arguments = [f"the publisher's {name}" for name in names]
    opened = dict(zip(names, for_device(arguments, 3), strict=True))
    assert opened.pop("storage_device") == 3
    assert opened.pop("event_sync_required") is False
    assert all(value == f"the publisher's {name}" for name, value in opened.items())
