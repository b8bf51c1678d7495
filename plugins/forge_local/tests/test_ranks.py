"""Replicas in processes of their own on runtime ``local``, where its conformance says nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass, replace

import pytest

from forge_core import (
    Component,
    Escaped,
    Placement,
    ReplicaSpec,
    RunFailed,
    Selection,
    ServiceOptions,
    Settings,
    UsageError,
)
from forge_local import rank_results
from forge_local.devices import DeviceTable
from forge_local.processes.logs import LOG_LIMIT, older
from forge_local.runtime import LocalRuntime
from forge_services import Service
from forge_testing.context import bare_context


class NoSettings(Settings):
    pass


@dataclass
class Point:
    """Defined in a module that the other process cannot import."""

    x: int


class Odd(Exception):
    """Cannot be pickled."""

    def __init__(self, lock):
        super().__init__("odd")
        self.lock = lock


class Rank:
    def __init__(self, context):
        self.context = context
        self.here = 0
        print("hello from", context.rank)

    def environment(self, *names):
        return [os.environ.get(name) for name in names]

    def double(self, point):
        return Point(2 * point.x)

    def raise_on(self, ranks, error):
        if self.context.rank in ranks:
            raise error

    def raise_odd(self):
        raise Odd(threading.Lock())

    def exit(self):
        raise SystemExit(3)

    async def block_unless(self, rank):
        """That rank raises; the others wait for it as in a collective."""
        if self.context.rank == rank:
            raise ValueError("not finite")
        await asyncio.Event().wait()

    def die_on(self, rank):
        """Take the process down, after some words; the others lose the connection."""
        if self.context.rank == rank:
            print("about to fall over")
            os.kill(os.getpid(), signal.SIGSEGV)
        raise ConnectionError("connection reset by peer")

    def print(self, size):
        print("x" * size)

    async def together(self):
        """How many calls are here once this one has let the others begin."""
        self.here += 1
        await asyncio.sleep(0)
        return self.here


def build_rank(settings, context):
    return Rank(context)


def build_badly(settings, context):
    if context.rank == 1:
        raise UsageError("trainer.what: rank 1 does not like it")
    threading.Event().wait()


def selection(build=build_rank):
    component = Component(name="rank", settings=NoSettings, build=build, summary="")
    return Selection(family="trainer", component=component, settings=NoSettings())


@pytest.fixture
async def start(tmp_path):
    runtime = LocalRuntime()
    services = []

    async def make(build=build_rank, **placement):
        context = replace(bare_context(), logs=tmp_path / "logs")
        service = await Service.start(
            runtime,
            selection(build),
            context,
            name="trainer",
            placement=Placement(**placement),
            options=ServiceOptions(retry=False),
        )
        services.append(service)
        return service

    yield make
    for service in services:
        await service.close()
    await runtime.close()


@pytest.fixture
async def pair(start):
    """Two ranks."""
    return await start(procs=2, env={"MINE": "yes"})


async def test_two_ranks_from_environment_to_errors(pair, tmp_path, monkeypatch):
    """One start serves several checks: each costs a second."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MINE")
    values = await pair.environment.route(*names)
    assert values == ["0", "2", "0", "2", "127.0.0.1", "yes"]
    # Classes that the ranks cannot import travel by value, and come back as themselves.
    doubled = await pair.double.route(Point(21))
    assert type(doubled) is Point
    assert doubled.x == 42
    # All ranks refuse the same input: it is raised once, and the replica lives on.
    with pytest.raises(UsageError) as refused:
        await pair.raise_on.route((0, 1), UsageError("no such step"))
    assert str(refused.value) == "no such step"
    assert "in raise_on" in str(refused.value.__cause__)
    with pytest.raises(UsageError, match="rank 1 of replica 0 of trainer: no such step"):
        await pair.raise_on.route((1,), UsageError("no such step"))
    with pytest.raises(RunFailed, match="Odd: odd"):
        await pair.raise_odd.route()
    with pytest.raises(Escaped, match="SystemExit: 3"):
        await pair.exit.route()
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        await pair.double.route(threading.Lock())
    # Calls made together arrive together.
    assert await asyncio.gather(*(pair.together.route() for _ in range(50))) == [50] * 50
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert "hello from 0" in logs["trainer-0-rank0.log"]
    assert "hello from 1" in logs["trainer-0-rank1.log"]
    for _ in range(2):
        await pair.print.route(LOG_LIMIT)
    for path in (tmp_path / "logs" / f"trainer-0-rank{rank}.log" for rank in range(2)):
        sizes = [path.stat().st_size, older(path).stat().st_size]
        assert max(sizes) <= LOG_LIMIT + (1 << 16)
    # One rank fails in a collective and the others wait for it.
    monkeypatch.setattr(rank_results, "GRACE", 0.1)
    with pytest.raises(ValueError, match="rank 1 of replica 0 of trainer: not finite"):
        await pair.block_unless.route(1)
    with pytest.raises(RunFailed, match="rank 1 of replica 0 of trainer failed in block_unless"):
        await pair.environment.route()


async def test_a_rank_that_falls_over_is_the_cause_and_not_what_the_others_say(pair):
    with pytest.raises(RunFailed) as caught:
        await pair.die_on.route(1)
    assert "died in die_on(): rank 1 of replica 0 of trainer" in str(caught.value)
    assert "was killed by SIGSEGV; its log:" in str(caught.value)
    assert "about to fall over" in caught.value.log_tail
    assert not any(line.startswith("---") for line in caught.value.log_tail)


async def test_a_rank_that_cannot_be_built_ends_the_others(start, monkeypatch):
    monkeypatch.setattr(rank_results, "GRACE", 0.1)
    message = "rank 1 of replica 0 of trainer: trainer.what: rank 1 does not like it"
    with pytest.raises(UsageError, match=message):
        await start(build_badly, procs=2)


async def test_threads_are_shared_out_unless_somebody_said_how_many(start, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    service = await start(procs=2)
    (threads,) = await service.environment.route("OMP_NUM_THREADS")
    assert int(threads) == max(1, cores // 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    service = await start(isolate=True)
    assert await service.environment.route("OMP_NUM_THREADS") == ["3"]


async def test_threads_that_wait_sleep_where_they_are_more_than_the_cores(start, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    service = await start(procs=2)
    assert await service.environment.route("OMP_WAIT_POLICY") == ["passive"]
    service = await start(isolate=True)
    assert await service.environment.route("OMP_WAIT_POLICY") == [None]
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    service = await start(procs=2)
    assert await service.environment.route("OMP_WAIT_POLICY") == ["active"]


async def test_gpus_by_replica_and_rank_and_the_arithmetic_when_there_are_too_few(start):
    table = DeviceTable(("0", "1", "2", "GPU-abc"))

    def spec(name, index, procs):
        return ReplicaSpec(
            name=name,
            index=index,
            placement=Placement(procs=procs, with_gpus=True),
            selection=selection(),
            context=bare_context(),
        )

    assert table.assign(spec("trainer", 0, 2)) == ("0", "1")
    assert table.assign(spec("generator", 0, 1)) == ("2",)
    assert table.assign(spec("generator", 0, 1)) == ("2",)  # started again
    with pytest.raises(UsageError) as refused:
        table.assign(spec("generator", 1, 2))
    assert str(refused.value) == (
        "generator.with_gpus: replica 1 needs 2 GPUs (one for each of its procs) and 1 are free: "
        "this host has 4, of which 2 with trainer, 1 with generator"
    )


async def test_gpus_of_all_services_are_counted_before_the_first_starts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    services = {
        "trainer": Placement(procs=2, with_gpus=True),
        "generator": Placement(replicas=2, with_gpus=True),
        "reference": Placement(isolate=True),
    }
    spec = ReplicaSpec(
        name="trainer",
        index=0,
        placement=services["trainer"],
        selection=selection(),
        context=replace(bare_context(), services=services),
    )
    with pytest.raises(UsageError) as refused:
        await LocalRuntime().spawn(spec)
    assert str(refused.value) == (
        "with_gpus: this host has 3 GPUs and needs 4: 2 with trainer, 2 with generator (one for "
        "each of their procs)"
    )


async def test_a_replica_sees_the_devices_it_was_given(start, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,9")
    runtime = LocalRuntime()
    spec = ReplicaSpec(
        name="generator",
        index=0,
        placement=Placement(with_gpus=True),
        selection=selection(),
        context=bare_context(),
    )
    replica = await runtime.spawn(spec)
    try:
        assert await replica.call("environment", ("CUDA_VISIBLE_DEVICES",), {}) == ["4"]
    finally:
        await runtime.close()


async def test_a_component_that_cannot_travel_is_refused(start):
    lock = threading.Lock()

    def build(settings, context):
        return lock

    with pytest.raises(UsageError, match="trainer 'rank' cannot be sent to a process of its own"):
        await start(build, isolate=True)
