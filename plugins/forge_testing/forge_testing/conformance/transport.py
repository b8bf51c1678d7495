"""What every transport must do. Inherit it, and say which transport with the ``selection`` fixture.

.. code-block:: python

    class TestMine(TransportConformance):
        crosses_processes = True

        @pytest.fixture
        def selection(self):
            return Selection(family="transport", component=MINE, settings=MineSettings())
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import pytest
import torch

from forge_core import BuildContext, Selection, Transport
from forge_tensors.checksum import checksum
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context

Weights = dict[str, torch.Tensor]
Target = Callable[[Selection[Transport], BuildContext, Connection], Coroutine[Any, Any, None]]
"""What another process does; module-level, so that it can be pickled."""

PATIENCE = 60.0
"""Seconds that another process may take to start and answer."""


class TransportConformance(Suite):
    """Inherit with a ``selection`` fixture.

    Override ``writer`` and ``reader`` too if two ends need more than one channel to meet, and
    ``processes`` if they meet only in processes that an engine starts.
    """

    time_limit: ClassVar[float] = 900.0  # engines take minutes to start

    crosses_processes: bool = False
    """Whether the two ends may live in different processes of one host."""

    outlives_publisher: bool = True
    """Whether versions stay when the end that published them closes or its process dies."""

    @pytest.fixture
    def selection(self) -> Selection[Transport]:
        """The transport under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def context(self) -> BuildContext:
        """A build context with a channel of its own."""
        return bare_context()

    @pytest.fixture
    async def writer(
        self, selection: Selection[Transport], context: BuildContext
    ) -> AsyncIterator[Transport]:
        """The end that publishes."""
        end = built(selection, context)
        yield end
        await end.close()

    @pytest.fixture
    async def reader(
        self, selection: Selection[Transport], context: BuildContext, writer: Transport
    ) -> AsyncIterator[Transport]:
        """The end that fetches."""
        end = built(selection, context)
        yield end
        await end.close()

    async def test_every_type_and_shape_arrives_byte_for_byte(
        self, writer: Transport, reader: Transport
    ) -> None:
        weights = assorted_weights()
        await writer.publish(0, weights.items())
        await expect(reader, 0, weights)

    async def test_tensors_come_in_the_order_published(
        self, writer: Transport, reader: Transport
    ) -> None:
        names = ["z", "a", "model.layers.10.w", "model.layers.2.w"]
        await writer.publish(0, [(name, torch.ones(2)) for name in names])
        assert list(await fetched(reader, 0)) == names

    async def test_a_version_without_tensors_is_a_version(
        self, writer: Transport, reader: Transport
    ) -> None:
        manifest = await writer.publish(3, [])
        assert (manifest.tensors, manifest.bytes) == (0, 0)
        assert await fetched(reader, 3) == {}

    async def test_publish_takes_a_copy(self, writer: Transport, reader: Transport) -> None:
        weight = torch.zeros(1000)
        await writer.publish(0, [("w", weight)])
        weight.fill_(1)
        await expect(reader, 0, {"w": torch.zeros(1000)})

    async def test_weights_with_gradients_arrive_without_a_graph(
        self, writer: Transport, reader: Transport
    ) -> None:
        weight = torch.nn.Parameter(torch.ones(4))
        await writer.publish(0, [("w", weight), ("doubled", weight * 2)])
        async for _, tensor in reader.fetch(0):
            assert not tensor.requires_grad

    async def test_the_manifest_tells_the_truth(self, writer: Transport) -> None:
        weights = assorted_weights()
        manifest = await writer.publish(7, weights.items())
        assert manifest.version == 7
        assert manifest.tensors == len(weights)
        assert manifest.bytes == sum(tensor.nbytes for tensor in weights.values())
        assert manifest.checksum == checksum(weights.items())

    async def test_versions_only_rise(self, writer: Transport, reader: Transport) -> None:
        await writer.publish(2, numbered(2).items())
        for version in (2, 1):
            with pytest.raises(ValueError, match=str(version)):
                await writer.publish(version, numbered(version).items())
        await writer.drop(2)
        with pytest.raises(ValueError, match="2"):
            await writer.publish(2, numbered(2).items())
        await writer.publish(5, numbered(5).items())
        assert await reader.versions() == [5]
        await expect(reader, 5, numbered(5))

    async def test_versions_stay_until_they_are_dropped(
        self, writer: Transport, reader: Transport
    ) -> None:
        for version in (0, 1, 4):
            await writer.publish(version, numbered(version).items())
        assert await reader.versions() == await writer.versions() == [0, 1, 4]
        await writer.drop(1)
        assert await reader.versions() == [0, 4]
        await expect(reader, 0, numbered(0))
        await expect(reader, 4, numbered(4))

    async def test_unknown_and_dropped_versions_raise(
        self, writer: Transport, reader: Transport
    ) -> None:
        with pytest.raises(KeyError):
            await fetched(reader, 0)
        await writer.publish(0, numbered(0).items())
        await reader.drop(0)
        for end in (writer, reader):
            with pytest.raises(KeyError):
                await fetched(end, 0)

    async def test_dropping_an_unknown_version_is_ignored(self, writer: Transport) -> None:
        await writer.drop(12)
        assert await writer.versions() == []

    async def test_weights_may_change_shape_between_versions(
        self, writer: Transport, reader: Transport
    ) -> None:
        for version, size in enumerate((10, 5000, 3, 70_000)):
            weights = {"w": torch.arange(size), "v": torch.full((size % 7,), version)}
            await writer.publish(version, weights.items())
            await expect(reader, version, weights)
            await writer.drop(version)

    async def test_a_fetch_under_way_outlives_a_drop(
        self, writer: Transport, reader: Transport
    ) -> None:
        await writer.publish(0, numbered(0).items())
        fetch = reader.fetch(0)
        got: Weights = {}
        for _ in range(2):
            name, tensor = await anext(fetch)
            got[name] = tensor.clone()
        await writer.drop(0)
        for version in range(1, 6):
            await writer.publish(version, numbered(version).items())
            await writer.drop(version - 1)
        async for name, tensor in fetch:
            got[name] = tensor.clone()
        assert_same(got, numbered(0))

    async def test_a_failing_publish_publishes_nothing(
        self, writer: Transport, reader: Transport
    ) -> None:
        await writer.publish(0, numbered(0).items())

        def failing() -> Iterator[tuple[str, torch.Tensor]]:
            yield "layer.0", torch.ones(3)
            raise RuntimeError("gather failed")

        with pytest.raises(RuntimeError, match="gather failed"):
            await writer.publish(1, failing())
        assert await reader.versions() == [0]
        await expect(reader, 0, numbered(0))
        await writer.publish(1, numbered(1).items())
        await expect(reader, 1, numbered(1))

    async def test_readers_get_whole_versions_while_others_are_published(
        self, writer: Transport, selection: Selection[Transport], context: BuildContext
    ) -> None:
        ends = [selection.build(context) for _ in range(3)]
        done = asyncio.Event()
        await writer.publish(0, numbered(0).items())

        async def read(end: Transport) -> int:
            whole = 0
            while not done.is_set():
                version = (await end.versions())[-1]
                with contextlib.suppress(KeyError):  # dropped since
                    got: Weights = {}
                    async for name, tensor in end.fetch(version):
                        got[name] = tensor.clone()
                        await asyncio.sleep(0)
                    assert_same(got, numbered(version))
                    whole += 1
                await asyncio.sleep(0)
            await end.close()
            return whole

        async def write() -> None:
            for version in range(1, 40):
                await writer.publish(version, numbered(version).items())
                await writer.drop(version - 2)
                for _ in range(version % 5):
                    await asyncio.sleep(0)
            done.set()

        counts, _ = await asyncio.gather(asyncio.gather(*map(read, ends)), write())
        assert all(count > 0 for count in counts)

    async def test_closing_the_last_end_forgets_everything(
        self, selection: Selection[Transport], context: BuildContext
    ) -> None:
        first, second = selection.build(context), selection.build(context)
        await first.publish(5, numbered(5).items())
        await first.close()
        if self.outlives_publisher:
            await expect(second, 5, numbered(5))
        else:
            assert await second.versions() == []
        await second.close()
        await second.close()
        fresh = selection.build(context)
        assert await fresh.versions() == []
        await fresh.publish(0, numbered(0).items())
        await fresh.close()

    async def test_channels_do_not_meet(
        self, writer: Transport, selection: Selection[Transport], context: BuildContext
    ) -> None:
        other = selection.build(replace(context, channel=context.channel + "-other"))
        await writer.publish(0, numbered(0).items())
        assert await other.versions() == []
        await other.close()

    async def test_readers_in_other_processes_get_whole_versions(
        self, writer: Transport, selection: Selection[Transport], context: BuildContext
    ) -> None:
        self._needs_processes()
        await writer.publish(0, numbered(0).items())
        async with self.processes(2, _read_until_told, selection, context) as pipes:
            for pipe in pipes:
                assert receive(pipe) == "ready"
            version = 0
            ends = time.monotonic() + 0.5
            while time.monotonic() < ends or version < 50:
                version += 1
                await writer.publish(version, numbered(version).items())
                await writer.drop(version - 2)
                await asyncio.sleep(0)
            for pipe in pipes:
                pipe.send("enough")
            for pipe in pipes:
                whole, torn = receive(pipe)
                assert torn == []
                assert whole > 0

    async def test_a_killed_writer_leaves_whole_versions(
        self, reader: Transport, selection: Selection[Transport], context: BuildContext
    ) -> None:
        self._needs_processes()
        async with self.processes(1, _publish_and_hang, selection, context) as [pipe]:
            pid = receive(pipe)
            assert receive(pipe) == "in the middle"
            os.kill(pid, signal.SIGKILL)
        if self.outlives_publisher:
            assert await reader.versions() == [1]
            await expect(reader, 1, numbered(1))
        else:
            assert await reader.versions() == []
            with pytest.raises(KeyError):
                await fetched(reader, 1)
        with pytest.raises(KeyError):
            await fetched(reader, 2)
        await reader.publish(2, numbered(2).items())
        await expect(reader, 2, numbered(2))

    async def test_a_killed_reader_holds_nothing_up(
        self, writer: Transport, selection: Selection[Transport], context: BuildContext
    ) -> None:
        self._needs_processes()
        await writer.publish(0, numbered(0).items())
        async with self.processes(1, _fetch_and_hang, selection, context) as [pipe]:
            pid = receive(pipe)
            assert receive(pipe) == "in the middle"
            os.kill(pid, signal.SIGKILL)
        for version in range(1, 5):
            await writer.publish(version, numbered(version).items())
            await writer.drop(version - 1)
        await expect(writer, 4, numbered(4))

    @contextlib.asynccontextmanager
    async def processes(
        self,
        count: int,
        target: Target,
        selection: Selection[Transport],
        context: BuildContext,
    ) -> AsyncIterator[Sequence[Connection]]:
        """Other processes of this host, each awaiting ``target(selection, context, pipe)``.

        Yields our ends of their pipes; at the end no process is left.
        """
        spawn = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_await, args=(target, selection, context, theirs))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            yield pipes
        finally:
            for process, pipe in zip(processes, pipes, strict=True):
                pipe.close()
                process.join(5)
                process.kill()
                process.join()

    def _needs_processes(self) -> None:
        if not self.crosses_processes:
            pytest.skip("both ends live in one process")


def assorted_weights() -> Weights:
    """One tensor of each type, and the shapes that go wrong: scalar, empty, strided, odd sizes."""
    types = [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    ]
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(5, 7, generator=generator) * 100
    weights = {f"type.{dtype}": base.to(dtype) for dtype in types}
    weights |= {
        "float8": base.to(torch.float8_e4m3fn),
        "scalar": torch.tensor(1.5),
        "scalar.bfloat16": torch.tensor(-2.25, dtype=torch.bfloat16),
        "empty": torch.empty(0),
        "empty.matrix": torch.empty(3, 0, 2, dtype=torch.int16),
        "transposed": base.T,
        "strided": torch.arange(100)[3::7],
        "expanded": torch.ones(1, 4).expand(3, 4),
        "one byte": torch.tensor([7], dtype=torch.uint8),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "big": torch.randn(300, 301, generator=generator),
    }
    return weights


def numbered(version: int) -> Weights:
    """Weights in which every element tells the version."""
    return {f"layer.{i}": torch.full((257 * (i + 1),), float(version)) for i in range(8)}


async def fetched(end: Transport, version: int) -> Weights:
    """A copy of everything a fetch yields."""
    return {name: tensor.clone() async for name, tensor in end.fetch(version)}


async def expect(end: Transport, version: int, weights: Weights) -> None:
    """Fetch a version and compare it, bit by bit."""
    assert_same(await fetched(end, version), weights)


def assert_same(got: Weights, expected: Weights) -> None:
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert got[name].shape == tensor.shape, name
        as_bytes = [t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in (got[name], tensor)]
        assert torch.equal(*as_bytes), name


def receive(pipe: Connection) -> Any:
    """What another process says next; EOFError if it died, AssertionError if it says nothing."""
    assert pipe.poll(PATIENCE), "the other process does not answer"
    return pipe.recv()


def _await(
    target: Target, selection: Selection[Transport], context: BuildContext, pipe: Connection
) -> None:
    asyncio.run(target(selection, context, pipe))


async def _read_until_told(
    selection: Selection[Transport], context: BuildContext, pipe: Connection
) -> None:
    end = selection.build(context)
    whole, torn = 0, []
    pipe.send("ready")
    while not pipe.poll():
        versions = await end.versions()
        if not versions:  # a folder's listing can miss one that comes and one that goes meanwhile
            continue
        version = versions[-1]
        try:
            got = await fetched(end, version)
        except KeyError:  # dropped since
            continue
        whole += 1
        torn += [(version, name) for name, tensor in got.items() if not (tensor == version).all()]
    await end.close()
    pipe.send((whole, torn))


async def _publish_and_hang(
    selection: Selection[Transport], context: BuildContext, pipe: Connection
) -> None:
    def hanging() -> Iterator[tuple[str, torch.Tensor]]:
        yield from list(numbered(2).items())[:4]
        pipe.send("in the middle")
        time.sleep(PATIENCE)

    end = selection.build(context)
    await end.publish(1, numbered(1).items())
    pipe.send(os.getpid())
    await end.publish(2, hanging())


async def _fetch_and_hang(
    selection: Selection[Transport], context: BuildContext, pipe: Connection
) -> None:
    end = selection.build(context)
    pipe.send(os.getpid())
    async for _ in end.fetch(0):
        pipe.send("in the middle")
        time.sleep(PATIENCE)
