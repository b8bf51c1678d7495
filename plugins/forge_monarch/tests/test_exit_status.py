"""How replicas end: asked to, by themselves, and killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    Component,
    Placement,
    Replica,
    ReplicaDied,
    ReplicaSpec,
    RunFailed,
    Runtime,
    Selection,
)
from forge_core import Settings as NoSettings
from forge_monarch import replica as replica_module
from forge_monarch.exit_status import first_end
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings
from forge_testing.context import bare_context


class Stubborn:
    """Its ``close`` waits for ever."""

    def pids(self) -> tuple[int, int]:
        """Of its process, and of one that it starts."""
        return os.getpid(), subprocess.Popen(["sleep", "600"]).pid

    def lock(self) -> Path:
        """Make a lock that other processes could share, which has a name in shared memory."""
        self._lock = multiprocessing.RLock()
        return Path("/dev/shm", f"sem.{self._lock._semlock.name.removeprefix('/')}")

    def leave(self, code: int) -> None:
        os._exit(code)

    async def close(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    runtime = MONARCH.build(MonarchSettings(), bare_context())
    yield runtime
    await runtime.close()


@pytest.fixture
async def replica(runtime: Runtime) -> Replica:
    component: Component[Any] = Component(
        name="stubborn",
        settings=NoSettings,
        build=lambda settings, context: Stubborn(),
        summary="",
    )
    stubborn: Selection[Any] = Selection(
        family="generator", component=component, settings=NoSettings()
    )
    context: BuildContext = bare_context()
    return await runtime.spawn(
        ReplicaSpec(
            name="generator", index=0, placement=Placement(), selection=stubborn, context=context
        )
    )


async def test_a_close_that_hangs_is_told_and_nothing_is_left(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "CLOSE_LIMIT", 0.5)
    pids = await replica.call("pids", (), {})
    with pytest.raises(RunFailed, match=r"replica 0 of generator did not close within 0\.5 s"):
        await replica.stop()
    await until_gone(*pids)


async def test_a_process_that_dies_while_it_closes_is_not_waited_for(replica: Replica) -> None:
    rank, child = await replica.call("pids", (), {})
    stopping = asyncio.ensure_future(replica.stop())
    await asyncio.sleep(0.2)
    os.kill(rank, signal.SIGKILL)
    with pytest.raises(ReplicaDied, match="was killed by SIGKILL"):
        await asyncio.wait_for(stopping, 120)
    await until_gone(rank, child)


async def test_the_end_of_a_process_is_known_with_its_exit_code_and_its_children_end(
    replica: Replica,
) -> None:
    _, child = await replica.call("pids", (), {})
    with pytest.raises(ReplicaDied, match="ended with exit code 3"):
        await asyncio.wait_for(replica.call("leave", (3,), {}), 60)
    await until_gone(child)
    await replica.stop()


async def test_what_a_killed_process_has_named_in_shared_memory_is_removed(
    replica: Replica,
) -> None:
    rank, _ = await replica.call("pids", (), {})
    lock = await replica.call("lock", (), {})
    assert lock.exists()
    os.kill(rank, signal.SIGKILL)
    await asyncio.wait_for(replica.wait_dead(), 60)
    async with asyncio.timeout(60):
        while lock.exists():
            await asyncio.sleep(0.02)
    await replica.stop()


async def test_of_a_process_that_lost_its_outer_one_the_end_is_known(replica: Replica) -> None:
    """As where the system is short of memory and kills whom it likes."""
    rank, child = await replica.call("pids", (), {})
    outer, _ = parents(rank)
    os.kill(outer, signal.SIGKILL)
    assert "replica 0 of generator" in await asyncio.wait_for(replica.wait_dead(), 60)
    await replica.stop()
    await until_gone(rank, child)


SUPERVISED = """
import runpy
from forge_monarch import bootstrap

runpy.run_module = lambda *args, **kwargs: exec(
    "import os, time; print(os.getpid(), os.environ[bootstrap.END], flush=True); time.sleep(600)",
    globals(),
)
bootstrap.main()
"""
"""In place of what Monarch runs: a process that says its pid and the name of its exit status."""


async def test_the_end_of_a_process_that_died_before_it_was_watched_is_known() -> None:
    outer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISED, stdout=asyncio.subprocess.PIPE
    )
    assert outer.stdout is not None
    pid, name = (await outer.stdout.readline()).decode().split()
    os.kill(int(pid), signal.SIGKILL)
    await until_gone(int(pid))
    await asyncio.sleep(0.5)
    assert await first_end([name]) == (0, -signal.SIGKILL)
    assert await outer.wait() == -signal.SIGKILL


CONTROLLER = """
import asyncio, subprocess
from forge_core import Component, Placement, Selection, Settings
from forge_core import ReplicaSpec
from forge_testing.context import bare_context
from forge_monarch.plugin import MONARCH

class Parent:
    def start(self):
        return subprocess.Popen(["sleep", "600"]).pid

async def main():
    context = bare_context()
    runtime = MONARCH.build(MONARCH.settings(), context)
    component = Component(name="parent", settings=Settings, summary="",
                          build=lambda settings, context: Parent())
    selection = Selection(family="generator", component=component, settings=Settings())
    replica = await runtime.spawn(ReplicaSpec(name="generator", index=0, placement=Placement(),
                                              selection=selection, context=context))
    print(await replica.call("start", (), {}), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_with_a_killed_controller_end_also_the_children_of_its_ranks() -> None:
    controller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, stdout=asyncio.subprocess.PIPE
    )
    assert controller.stdout is not None
    child = int(await controller.stdout.readline())
    rank, _ = parents(child)
    controller.kill()
    await controller.wait()
    await until_gone(rank, child)


def parents(process: int) -> tuple[int, int]:
    """Its parent, and its parent's."""
    above = []
    for _ in range(2):
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        above.append(process)
    return above[0], above[1]


async def until_gone(*pids: int) -> None:
    """Wait until none of these processes runs."""
    async with asyncio.timeout(60):
        while any(map(_runs, pids)):
            await asyncio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
