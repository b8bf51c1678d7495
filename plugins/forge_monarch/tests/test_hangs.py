"""A process that stands still is told from one that is busy."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import BuildContext, Component, Placement, ReplicaSpec, Selection, Settings
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings
from forge_testing.context import bare_context
from forge_testing.runs import Run, small_config

HANG_AFTER = 5.0


class Busy:
    """A component with a native call that lets no other Python code run in its process."""

    def hold_the_lock(self, seconds: int) -> int:
        ctypes.PyDLL(None).sleep(seconds)  # keeps the interpreter's lock
        return os.getpid()


async def test_a_native_call_that_holds_the_interpreter_is_no_hang(tmp_path: Path) -> None:
    """Monarch's own threads answer for the process, and need no interpreter."""
    component: Component[Busy] = Component(
        name="busy", settings=Settings, build=lambda settings, context: Busy(), summary=""
    )
    busy: Selection[Any] = Selection(family="generator", component=component, settings=Settings())
    context: BuildContext = bare_context()
    spec = ReplicaSpec(
        name="generator", index=0, placement=Placement(), selection=busy, context=context
    )
    runtime = MONARCH.build(MonarchSettings(hang_after=2.0), context)
    try:
        replica = await runtime.spawn(spec)
        dead = asyncio.ensure_future(replica.wait_dead())
        assert await replica.call("hold_the_lock", (8,), {}) != os.getpid()
        assert not dead.done()
        dead.cancel()
    finally:
        await runtime.close()


@pytest.mark.slow
def test_a_generator_that_stands_still_is_replaced(runs: Callable[..., Run]) -> None:
    """Its requests go elsewhere, and the run does not see it."""
    config = small_config(
        runtime={"use": "monarch", "hang_after": HANG_AFTER},
        transport={"use": "shm"},
        generator={"replicas": 2},
    )
    run = runs(config, "training.steps=100000")
    run.until_step(2)
    hung = run.ranks("generator-1")[0]
    os.kill(hung, signal.SIGSTOP)
    stopped = time.time()
    run.until(lambda: run.kinds()["replica_restarted"])
    run.until_step(len(run.lines("metrics.jsonl")) + 5)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.printed
    (death,) = (event for event in run.lines("events.jsonl") if event["kind"] == "replica_died")
    assert f"(process {hung}) does not answer" in death["message"]
    assert death["time"] - stopped > HANG_AFTER / 2
    assert not Path(f"/proc/{hung}").exists()
    rows = run.lines("metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["groups/total"] == 4 and row["staleness/max"] == 0 for row in rows)
    assert max(row.get("mismatch/logprob_abs_max", 0.0) for row in rows) < 1e-4
    assert run.ranks() == []
