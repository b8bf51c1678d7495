"""What every runtime must do. Inherit it, and say which runtime with the ``runtime`` fixture.

.. code-block:: python

    class TestMine(ProcessRuntimeConformance):
        @pytest.fixture
        async def runtime(self):
            runtime = MyRuntime()
            yield runtime
            await runtime.close()
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forge_core import (
    BuildContext,
    Component,
    FanoutError,
    Placement,
    Replica,
    ReplicaDied,
    ReplicaSpec,
    RunFailed,
    Runtime,
    Selection,
    ServiceOptions,
    Settings,
    UsageError,
    WeightManifest,
)
from forge_services import Health, Service, update_weights
from forge_testing.conformance.suite import Suite
from forge_testing.context import bare_context, select

PATIENCE = 60.0
"""Seconds that a start, an answer or a death may take on a machine that does other work."""

GONE = "was killed by SIGKILL"
"""What the cause of a killed process's death says."""


class ProbeSettings(Settings):
    """``folder`` is where the component leaves word; ``unfit`` is what ``build`` complains of."""

    folder: Path
    unfit: str = ""


class Probe:
    """A component that does what a test asks of it."""

    def __init__(self, settings: ProbeSettings, context: BuildContext) -> None:
        self._folder = settings.folder
        self._context = context
        self._here = 0
        self._cancelled = 0
        self._manifest = WeightManifest(-1, "none", 0, 0)

    def place(self) -> tuple[int, int, int]:
        return self._context.replica, self._context.rank, self._context.world_size

    async def pid(self) -> int:
        return os.getpid()

    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    def add(self, a: int, *, b: int = 1) -> int:
        return a + b

    def fail(self, message: str, rank: int | None = None) -> int:
        if rank in (None, self._context.rank):
            raise ZeroDivisionError(message)
        return self._context.rank

    async def fail_alone(self, message: str) -> None:
        """Rank 0 fails, the others wait for it for ever."""
        if self._context.rank == 0:
            raise ZeroDivisionError(message)
        await asyncio.Event().wait()

    def die(self) -> None:
        raise ReplicaDied("the engine is gone")

    def block(self, seconds: float) -> None:
        time.sleep(seconds)

    async def meet(self, calls: int) -> int:
        """Answer once so many calls are here at the same time."""
        self._here += 1
        while self._here < calls:
            await asyncio.sleep(0.01)
        return self._here

    async def wait(self) -> None:
        self._leave_word("waiting")
        try:
            await asyncio.Event().wait()
        finally:
            self._cancelled += 1

    def cancelled(self) -> int:
        return self._cancelled

    def start_child(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    def print(self, text: str) -> None:
        print(text, flush=True)

    async def slow_index(self, seconds: float) -> int:
        """The replica's index, after a while."""
        await asyncio.sleep(seconds)
        return self._context.replica

    async def update_weights(self, manifest: WeightManifest) -> WeightManifest:
        self._manifest = manifest
        return manifest

    def version(self) -> int:
        return self._manifest.version

    def close(self) -> None:
        self._leave_word("closed")

    def _leave_word(self, word: str) -> None:
        (self._folder / f"{word}-{self._context.replica}-{self._context.rank}").touch()


def _build_probe(settings: ProbeSettings, context: BuildContext) -> Probe:
    if settings.unfit:
        raise UsageError(settings.unfit)
    return Probe(settings, context)


PROBE: Component[Probe] = Component(
    name="probe", settings=ProbeSettings, build=_build_probe, summary="does what a test asks of it"
)


class RuntimeConformance(Suite):
    """Inherit with a ``runtime`` fixture that closes what it yields."""

    time_limit: ClassVar[float] = 900.0  # engines take minutes to start

    placement: Placement = Placement()
    """What a replica of one rank is asked for with."""

    @pytest.fixture
    def runtime(self) -> Runtime:
        """The runtime under test."""
        raise NotImplementedError("override the runtime fixture")

    @pytest.fixture
    def context(self, tmp_path: Path) -> BuildContext:
        """What replicas are built with."""
        return replace(bare_context(), logs=tmp_path / "logs")

    @pytest.fixture
    def probe(self, tmp_path: Path) -> Selection[Any]:
        """The component that replicas hold."""
        return Selection(
            family="generator", component=PROBE, settings=ProbeSettings(folder=tmp_path)
        )

    @pytest.fixture
    async def replica(
        self, runtime: Runtime, probe: Selection[Any], context: BuildContext
    ) -> Replica:
        """One replica of one rank, with index 3."""
        return await runtime.spawn(self._spec(probe, context, index=3))

    def _spec(
        self, probe: Selection[Any], context: BuildContext, *, index: int = 0, procs: int = 1
    ) -> ReplicaSpec:
        placement = replace(self.placement, procs=procs)
        return ReplicaSpec(
            name="generator", index=index, placement=placement, selection=probe, context=context
        )

    async def test_calls_and_what_they_cost(
        self, replica: Replica, tmp_path: Path, probe: Selection[Any]
    ) -> None:
        """Results, exceptions, calls at once, cancelling, the end: on one replica, one after the
        other, for starting one may take seconds."""
        assert await replica.call("place", (), {}) == (3, 0, 1)
        assert await replica.call("add", (2,), {"b": 3}) == 5
        with pytest.raises(ZeroDivisionError, match="no good") as caught:
            await replica.call("fail", ("no good",), {})
        assert "in fail" in _whole(caught.value), "the traceback says where it was raised"
        with pytest.raises(AttributeError, match="nonsense"):
            await replica.call("nonsense", (), {})
        together = [_call(replica, "meet", 3) for _ in range(3)]
        assert await asyncio.wait_for(asyncio.gather(*together), PATIENCE) == [3, 3, 3]
        waiting = asyncio.ensure_future(_call(replica, "wait"))
        await _until(lambda: (tmp_path / "waiting-3-0").exists())
        waiting.cancel()
        while not await replica.call("cancelled", (), {}):
            await asyncio.sleep(0.01)
        await replica.stop()
        assert (tmp_path / "closed-3-0").exists()
        await replica.stop()
        with pytest.raises(ReplicaDied):
            await replica.call("place", (), {})

    async def test_a_component_can_say_that_it_is_dead(self, replica: Replica) -> None:
        with pytest.raises(ReplicaDied, match="the engine is gone"):
            await replica.call("die", (), {})
        assert "the engine is gone" in await asyncio.wait_for(replica.wait_dead(), PATIENCE)
        with pytest.raises(ReplicaDied, match="the engine is gone"):
            await replica.call("place", (), {})
        await replica.stop()

    async def test_what_build_raises_is_raised_here(
        self, runtime: Runtime, context: BuildContext, tmp_path: Path
    ) -> None:
        settings = ProbeSettings(folder=tmp_path, unfit="generator.size: too small")
        unfit: Selection[Any] = Selection(family="generator", component=PROBE, settings=settings)
        with pytest.raises(UsageError, match=r"generator\.size: too small"):
            await runtime.spawn(self._spec(unfit, context))

    async def test_code_of_a_notebook_reaches_it(
        self, runtime: Runtime, context: BuildContext
    ) -> None:
        """A class that no other process could import."""

        class Written:
            def twice(self, value: int) -> int:
                return 2 * value

        written = select("generator", lambda settings, context: Written())
        replica = await runtime.spawn(self._spec(written, context))
        assert await replica.call("twice", (4,), {}) == 8

    async def test_a_service_on_it(
        self, runtime: Runtime, probe: Selection[Any], context: BuildContext
    ) -> None:
        service = await Service.start(
            runtime, probe, context, name="generator", placement=replace(self.placement, replicas=2)
        )
        try:
            answers = [service.slow_index.route(0.2) for _ in range(4)]
            assert sorted(await asyncio.gather(*answers)) == [0, 0, 1, 1]
            assert await service.add.fanout(1) == [2, 2]
            async with service.session() as index:
                assert await service.slow_index.route(0) == index
            with pytest.raises(FanoutError, match="of 2 replicas"):
                await service.fail.fanout("no good")
            assert service.status().health is Health.HEALTHY, "an exception costs no replica"
        finally:
            await service.close()


class ProcessRuntimeConformance(RuntimeConformance):
    """For runtimes that put a replica's ranks into processes of their own."""

    async def test_a_killed_process_is_told_from_an_exception(
        self, replica: Replica, context: BuildContext
    ) -> None:
        pid = await replica.call("pid", (), {})
        assert pid != os.getpid()
        child = await replica.call("start_child", (), {})
        await replica.call("print", ("the last words",), {})
        in_flight = asyncio.ensure_future(_call(replica, "wait"))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        cause = await asyncio.wait_for(replica.wait_dead(), PATIENCE)
        assert re.search(GONE, cause)
        with pytest.raises(ReplicaDied, match=GONE) as death:
            await asyncio.wait_for(in_flight, PATIENCE)
        assert "the last words" in death.value.log_tail
        with pytest.raises(ReplicaDied, match=GONE):
            await replica.call("place", (), {})
        await replica.stop()
        await _until(lambda: not _alive(child))

    async def test_a_process_that_ends_by_itself(
        self, runtime: Runtime, context: BuildContext, tmp_path: Path
    ) -> None:
        ends = select("generator", lambda settings, context: os._exit(7))
        with pytest.raises(ReplicaDied, match="ended with exit code 7"):
            await asyncio.wait_for(runtime.spawn(self._spec(ends, context)), PATIENCE)

    async def test_a_start_that_is_cancelled_leaves_nothing(
        self, runtime: Runtime, context: BuildContext, tmp_path: Path
    ) -> None:
        """As where a run ends while a replica is started again."""
        word = tmp_path / "pid"

        def build(settings: Settings, context: BuildContext) -> None:
            word.write_text(f"{os.getpid()}\n")
            time.sleep(600)

        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )
        start = asyncio.ensure_future(
            runtime.spawn(self._spec(select("generator", build), context))
        )
        await _until(lambda: word.exists() and word.read_text().endswith("\n"))
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await _until(lambda: not _alive(int(word.read_text())))
        del start
        gc.collect()  # asyncio then complains of exceptions that were never retrieved
        await asyncio.sleep(0)
        assert not complaints

    async def test_a_method_that_holds_its_process_is_no_death(self, replica: Replica) -> None:
        await replica.call("block", (1.5,), {})
        assert await replica.call("add", (1,), {}) == 2

    async def test_ranks(
        self,
        runtime: Runtime,
        probe: Selection[Any],
        context: BuildContext,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Every rank makes the call; rank 0 answers; the first that raises decides the error."""
        monkeypatch.setattr("forge_local.rank_results.GRACE", 0.5)
        placement = replace(self.placement, env={"COLOUR": "blue"})
        spec = replace(self._spec(probe, context, procs=2), placement=replace(placement, procs=2))
        replica = await runtime.spawn(spec)
        assert await replica.call("place", (), {}) == (0, 0, 2)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "COLOUR")
        environment = await replica.call("environment", names, {})
        assert environment == ["0", "0", "2", "2", "127.0.0.1", "blue"]
        with pytest.raises(ZeroDivisionError) as caught:
            await replica.call("fail", ("no good", 1), {})
        assert "rank 1" in _whole(caught.value)
        assert await replica.call("add", (1,), {}) == 2, "the replica lives on"
        with pytest.raises(ZeroDivisionError, match="alone"):
            await replica.call("fail_alone", ("alone",), {})
        cause = await asyncio.wait_for(replica.wait_dead(), PATIENCE)
        assert "the others waited for it" in cause
        await replica.stop()

    async def test_a_rank_that_dies_takes_the_others_with_it(
        self, runtime: Runtime, probe: Selection[Any], context: BuildContext
    ) -> None:
        replica = await runtime.spawn(self._spec(probe, context, procs=2))
        pid = await replica.call("pid", (), {})
        os.kill(pid, signal.SIGKILL)
        assert "rank 0" in await asyncio.wait_for(replica.wait_dead(), PATIENCE)
        await replica.stop()

    async def test_close_leaves_no_process(
        self, runtime: Runtime, probe: Selection[Any], context: BuildContext, tmp_path: Path
    ) -> None:
        replica = await runtime.spawn(self._spec(probe, context))
        pids = [await replica.call("pid", (), {}), await replica.call("start_child", (), {})]
        await runtime.close()
        assert (tmp_path / "closed-0-0").exists()
        await _until(lambda: not any(map(_alive, pids)))

    async def test_the_service_replaces_a_killed_replica(
        self, runtime: Runtime, probe: Selection[Any], context: BuildContext
    ) -> None:
        """Its calls go to the other one; it comes back with the weights, and is never seen."""
        events: list[str] = []
        service = await Service.start(
            runtime,
            probe,
            context,
            name="generator",
            placement=replace(self.placement, replicas=2),
            on_event=lambda kind, *_: events.append(kind),
        )
        try:
            await update_weights(service, WeightManifest(5, "abc", 0, 0))
            async with service.session() as index:
                pid = await service.pid.route()
            calls = [asyncio.ensure_future(service.slow_index.route(1.0)) for _ in range(4)]
            await asyncio.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            assert set(await asyncio.wait_for(asyncio.gather(*calls), PATIENCE)) <= {0, 1}
            async with asyncio.timeout(PATIENCE):
                while "replica_restarted" not in events:
                    await asyncio.sleep(0.05)
            assert service.status().replicas[index].restarts == 1
            assert await service.version.fanout() == [5, 5]
            assert events == ["replica_died", "replica_restarted"]
        finally:
            await service.close()

    async def test_a_service_that_must_not_retry_fails_with_the_cause(
        self, runtime: Runtime, probe: Selection[Any], context: BuildContext
    ) -> None:
        service = await Service.start(
            runtime,
            probe,
            context,
            name="trainer",
            placement=self.placement,
            options=ServiceOptions(retry=False),
        )
        try:
            pid = await service.pid.route()
            call = asyncio.ensure_future(service.slow_index.route(60))
            await asyncio.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(RunFailed, match=GONE):
                await asyncio.wait_for(call, PATIENCE)
        finally:
            await service.close()


async def _call(replica: Replica, method: str, *args: Any) -> Any:
    return await replica.call(method, args, {})


async def _until(condition: Any, seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _whole(error: BaseException) -> str:
    """An exception as a person sees it, traceback, cause and notes included."""
    import traceback

    return "".join(traceback.format_exception(error))
