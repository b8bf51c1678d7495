"""Transport ``torchstore``, on the real TorchStore."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import pytest
import torch

from forge_core import BuildContext, RunFailed, Selection, Transport
from forge_testing.conformance import transport as conformance
from forge_testing.conformance.transport import (
    Target,
    TransportConformance,
    expect,
    fetched,
    numbered,
    receive,
)
from forge_torchstore import segments, shared_volume, strategy
from forge_torchstore.plugin import TORCHSTORE
from forge_torchstore.settings import Storage, TorchStoreSettings

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def selected(storage: Storage = "process") -> Selection[Transport]:
    settings = TorchStoreSettings(storage=storage)
    return Selection(family="transport", component=TORCHSTORE, settings=settings)


async def answer(
    address: str, target: Target, selection: Selection[Transport], context: BuildContext
) -> None:
    with Client(address, family="AF_UNIX") as pipe:
        await target(selection, context, pipe)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_process_left")
class OnMonarch(TransportConformance):
    crosses_processes = True

    @pytest.fixture(autouse=True)
    def _workers(self, workers: Any) -> None:
        self._start_workers = workers

    @asynccontextmanager
    async def processes(
        self,
        count: int,
        target: Target,
        selection: Selection[Transport],
        context: BuildContext,
    ) -> AsyncIterator[Sequence[Connection]]:
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            listener = stack.enter_context(closing(Listener(f"{folder}/pipe", family="AF_UNIX")))
            calls, pipes = [], []
            for worker in await stack.enter_async_context(self._start_workers(count)):
                address = str(listener.address)
                calls.append(worker.run.call_one(answer, address, target, selection, context))
                pipes.append(stack.enter_context(listener.accept()))
            yield pipes


class TestColocated(OnMonarch):
    opt_out: ClassVar[Mapping[str, str]] = {
        "test_a_killed_writer_leaves_whole_versions": "its process kept the storage; see below"
    }

    @pytest.fixture
    def selection(self) -> Selection[Transport]:
        return selected("colocated")

    async def test_a_killed_writer_takes_the_storage_with_it(
        self, reader: Transport, selection: Selection[Transport], context: BuildContext
    ) -> None:
        hanging = conformance._publish_and_hang
        async with self.processes(1, hanging, selection, context) as [pipe]:
            pid = receive(pipe)
            assert receive(pipe) == "in the middle"
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(RunFailed, match=r"storage died.*storagevolumes.*Killed"):
                await fetched(reader, 1)


KEPT = (
    "test_closing_the_last_end_forgets_everything",
    "test_a_killed_writer_leaves_whole_versions",
)


class TestProcess(OnMonarch):
    """Only what depends on where storage lives: each test starts a process."""

    opt_out: ClassVar[Mapping[str, str]] = {
        name: "the same wherever storage lives: TestColocated runs it"
        for name in dir(TransportConformance)
        if name.startswith("test_") and name not in KEPT
    }

    @pytest.fixture
    def selection(self) -> Selection[Transport]:
        return selected()


def memory_files() -> int:
    """Segments that this process has open."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            count += os.readlink(file).startswith("/memfd:forge-weights")
        except OSError:
            continue
    return count


@pytest.mark.usefixtures("no_process_left")
async def test_buffers_alternate_and_a_slow_reader_has_its_own(context: BuildContext) -> None:
    end = selected("colocated").build(context)
    before = memory_files()
    seen = []
    slow = None
    for version in range(8):
        await end.publish(version, numbered(version).items())
        await end.drop(version - 1)
        seen.append(memory_files() - before)
        if version == 3:
            slow = end.fetch(version)
            await anext(slow)
    assert slow is not None
    # It still reads what it began with, many versions later.
    async for _, tensor in slow:
        assert (tensor == 3).all()
    assert seen[1:4] == [seen[1]] * 3  # two buffers, however many versions
    assert seen[5:] == [seen[5]] * 3  # a third one as long as the fetch lasts
    assert seen[5] > seen[3]
    del tensor
    await end.close()
    assert memory_files() == before


@pytest.mark.usefixtures("no_process_left")
async def test_dead_storage_is_named_and_the_channel_can_be_used_again(
    context: BuildContext, children: Callable[[], set[int]]
) -> None:
    before = children()
    end = selected().build(context)
    await end.publish(0, numbered(0).items())
    [storage] = children() - before
    os.kill(storage, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"torchstore: .*storage died.*storagevolumes.*Killed"):
        await fetched(end, 0)
    with pytest.raises(RunFailed, match="storage died"):
        await end.publish(1, numbered(1).items())
    await end.close()
    fresh = selected().build(context)
    await fresh.publish(0, numbered(0).items())
    await expect(fresh, 0, numbered(0))
    await fresh.close()


async def shared_tensors(elsewhere: bool, context: BuildContext) -> tuple[bool, int]:
    """Fetch version 0, with no word of Monarch in the context: so do engines' own threads.

    Returns whether it is right, and how many tensors came without being sent.
    """
    if elsewhere:
        for module in (segments, shared_volume, strategy):
            module.host_id = lambda: "another host"  # type: ignore[attr-defined]
    end = selected().build(context)
    weights = numbered(0)

    async def fetch() -> tuple[bool, int]:
        right, shared = True, 0
        async for name, tensor in end.fetch(0):
            right = right and torch.equal(tensor, weights[name])
            shared += segments.SharedTensor.of(tensor) is not None
        return right, shared

    result = await asyncio.create_task(fetch(), context=contextvars.Context())
    await end.close()
    return result


@pytest.mark.usefixtures("no_process_left")
async def test_bytes_are_sent_to_another_host_and_shared_on_this_one(
    workers: Any, context: BuildContext
) -> None:
    end = selected().build(context)
    await end.publish(0, numbered(0).items())
    async with workers(2) as (here, there):
        near, far = await asyncio.gather(
            here.run.call_one(shared_tensors, False, context),
            there.run.call_one(shared_tensors, True, context),
        )
    assert near == (True, len(numbered(0)))
    assert far == (True, 0)
    await end.close()
