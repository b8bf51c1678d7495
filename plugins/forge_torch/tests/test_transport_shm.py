"""Transport ``shm``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import ForgeError, RunFailed, Selection, Transport, UsageError
from forge_tensors.checksum import checksum
from forge_testing.conformance.transport import TransportConformance, expect, numbered
from forge_testing.context import bare_context
from forge_torch.plugin import SHM
from forge_torch.settings import ShmSettings
from forge_torch.transports.shm import SPARE_SEGMENTS, ShmTransport

pytestmark = pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK), reason="this host has no /dev/shm"
)


class TestShm(TransportConformance):
    crosses_processes = True

    @pytest.fixture
    def selection(self, tmp_path: Path) -> Selection[Transport]:
        return Selection(family="transport", component=SHM, settings=ShmSettings(folder=tmp_path))


def end_of(channel: str, **settings: Any) -> ShmTransport:
    return ShmTransport(ShmSettings(**settings), bare_context(channel=channel))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def segments(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("segment-*")}


async def test_it_works_in_dev_shm_and_leaves_nothing_there() -> None:
    channel = f"test-{os.getpid()}"
    writer, reader = end_of(channel), end_of(channel)
    await writer.publish(0, numbered(0).items())
    await expect(reader, 0, numbered(0))
    assert [name for name in os.listdir("/dev/shm") if channel in name]
    await writer.close()
    await reader.close()
    assert not [name for name in os.listdir("/dev/shm") if channel in name]


async def test_segments_are_used_again(tmp_path: Path) -> None:
    end = end_of("c", folder=tmp_path)
    seen = set()
    for version in range(10):
        await end.publish(version, numbered(version).items())
        await end.drop(version - 1)
        seen |= segments(tmp_path)
    assert len(seen) == 2
    await end.close()


async def test_segments_are_bounded(tmp_path: Path) -> None:
    end = end_of("c", folder=tmp_path)
    for version in range(8):
        await end.publish(version, numbered(version).items())
    assert len(segments(tmp_path)) == 8
    for version in range(8):
        await end.drop(version)
    await end.publish(8, numbered(8).items())
    assert len(segments(tmp_path)) == 1 + SPARE_SEGMENTS
    await end.close()


async def test_a_segment_takes_no_more_room_than_its_version(tmp_path: Path) -> None:
    end = end_of("c", folder=tmp_path)
    manifest = await end.publish(0, [(str(i), torch.ones(16 * i)) for i in range(100)])
    [segment] = tmp_path.rglob("segment-*")
    assert segment.stat().st_size == manifest.bytes
    await end.close()


async def test_a_reader_cannot_write_to_what_others_read(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from forge_testing.context import bare_context\n"
        "from forge_torch.settings import ShmSettings\n"
        "from forge_torch.transports.shm import ShmTransport\n"
        "async def main():\n"
        "    end = ShmTransport(ShmSettings(folder=sys.argv[1]), bare_context(channel='c'))\n"
        "    async for _, tensor in end.fetch(0):\n"
        "        tensor.zero_()\n"
        "asyncio.run(main())\n"
    )
    end = end_of("c", folder=tmp_path)
    await end.publish(0, numbered(7).items())
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert result.returncode == -signal.SIGSEGV
    await expect(end, 0, numbered(7))
    await end.close()


async def test_two_ends_cannot_publish_at_once(tmp_path: Path) -> None:
    first, second = end_of("c", folder=tmp_path), end_of("c", folder=tmp_path)
    with first._writing(), pytest.raises(ForgeError, match="another end is publishing"):
        await second.publish(0, numbered(0).items())
    await second.publish(0, numbered(0).items())
    with pytest.raises(ValueError, match="not higher than 0"):
        await first.publish(0, numbered(0).items())
    await first.close()
    await second.close()


def _publish_and_die(folder: Path, channel: str, pipe: Connection) -> None:
    import asyncio

    end = end_of(channel, folder=folder)
    asyncio.run(end.publish(4, numbered(4).items()))
    pipe.send("published")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("channel", ["same", "another"])
async def test_what_the_dead_left_is_removed_by_the_next_start(
    tmp_path: Path, channel: str
) -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_publish_and_die, args=(tmp_path, "same", theirs))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == "published"
    process.join()
    assert segments(tmp_path)
    end = end_of(channel, folder=tmp_path)
    assert not segments(tmp_path)
    assert await end.versions() == []
    await end.publish(0, numbered(0).items())
    await end.close()
    assert files(tmp_path) == []


async def test_the_living_keep_what_the_dead_published(tmp_path: Path) -> None:
    reader = end_of("same", folder=tmp_path)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_publish_and_die, args=(tmp_path, "same", theirs))
    process.start()
    process.join(60)
    await expect(reader, 4, numbered(4))
    with pytest.raises(ValueError, match="not higher than 4"):
        await reader.publish(4, numbered(4).items())
    await reader.close()
    assert files(tmp_path) == []
    ours.close()


def test_a_process_that_forgets_to_close_leaves_nothing_and_says_nothing(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, torch\n"
        "from forge_testing.context import bare_context\n"
        "from forge_torch.settings import ShmSettings\n"
        "from forge_torch.transports.shm import ShmTransport\n"
        "end = ShmTransport(ShmSettings(folder=sys.argv[1]), bare_context(channel='c'))\n"
        "asyncio.run(end.publish(0, [('w', torch.ones(1000))]))\n"
        "async def read():\n"
        "    async for name, tensor in end.fetch(0):\n"
        "        print(name, tensor.sum().item())\n"
        "asyncio.run(read())\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "w 1000.0\n", "")
    assert files(tmp_path) == []


async def test_full_memory_is_an_error_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    real = os.posix_fallocate

    def full(fd: int, offset: int, size: int) -> None:
        if offset + size > 1_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    end = end_of("c", folder=tmp_path)
    await end.publish(0, [("w", torch.ones(1000))])
    with pytest.raises(RunFailed, match="shared memory is full"):
        await end.publish(1, [("w", torch.ones(1_000_000))])
    assert await end.versions() == [0]
    await end.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write to .*missing"):
        end_of("c", folder=tmp_path / "missing")


async def test_links_that_others_left_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "owners").touch()
    (victim / "precious").touch()
    shared = tmp_path / "shared"
    shared.mkdir()
    end = end_of("c", folder=shared)
    [channel] = shared.iterdir()
    await end.close()
    (shared / f"{channel.name}x").symlink_to(victim)
    await end_of("c", folder=shared).close()
    channel.symlink_to(victim)
    with pytest.raises(UsageError, match="is in the way"):
        end_of("c", folder=shared)
    assert files(victim) == ["owners", "precious"]


async def test_any_text_is_a_channel(tmp_path: Path) -> None:
    names = ["a/b", "a_b", "../up", "ü" * 300, ""]
    ends = [end_of(name, folder=tmp_path) for name in names]
    for version, end in enumerate(ends):
        await end.publish(version, numbered(version).items())
    for version, end in enumerate(ends):
        assert await end.versions() == [version]
        await end.close()
    assert files(tmp_path) == []


async def test_weights_can_travel_in_another_type(tmp_path: Path) -> None:
    end = end_of("narrow", folder=tmp_path, dtype="bfloat16")
    weights = {"w": torch.randn(5, 3), "n": torch.arange(4)}
    manifest = await end.publish(0, weights.items())
    fetched = {name: tensor.clone() async for name, tensor in end.fetch(0)}
    assert torch.equal(fetched["w"], weights["w"].bfloat16())
    assert torch.equal(fetched["n"], weights["n"])
    assert manifest.bytes == 5 * 3 * 2 + 4 * 8
    assert manifest.checksum == checksum(fetched.items())
    await end.close()


@pytest.mark.parametrize("damage", [b"\x00", b"{}", b"[]", b"\xff\xfe"], ids=str)
async def test_a_damaged_index_is_named(tmp_path: Path, damage: bytes) -> None:
    writer, reader = end_of("c", folder=tmp_path), end_of("c", folder=tmp_path)
    await writer.publish(0, numbered(0).items())
    (index,) = tmp_path.rglob("version-0.json")
    index.write_bytes(damage)
    with pytest.raises(RunFailed, match=r"transport shm: the index of published weights is dam"):
        await expect(reader, 0, numbered(0))
    await reader.close()
    await writer.close()
