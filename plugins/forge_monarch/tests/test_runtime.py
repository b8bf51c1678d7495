"""Runtime ``monarch`` on this host: what every runtime must do, and what only this one does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forge_core import BuildContext, Runtime, Selection
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings
from forge_testing.conformance.runtime import ProcessRuntimeConformance
from forge_testing.context import bare_context


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    runtime = MONARCH.build(MonarchSettings(), bare_context())
    yield runtime
    await runtime.close()


class TestOnThisHost(ProcessRuntimeConformance):
    @pytest.fixture
    def runtime(self, runtime: Runtime) -> Runtime:
        return runtime

    async def test_a_hang_is_noticed_and_the_hung_process_ended(
        self, probe: Selection[Any], context: BuildContext
    ) -> None:
        runtime = MONARCH.build(MonarchSettings(hang_after=3), bare_context())
        try:
            replica = await runtime.spawn(self._spec(probe, context))
            pid = await replica.call("pid", (), {})
            os.kill(pid, signal.SIGSTOP)
            started = time.monotonic()
            cause = await asyncio.wait_for(replica.wait_dead(), 120)
            assert "does not answer" in cause
            assert time.monotonic() - started > 2
            await replica.stop()
            assert not Path(f"/proc/{pid}").exists()
        finally:
            await runtime.close()


MANY_RUNS = """
    import asyncio
    from forge_core import Placement
    from forge_core import ReplicaSpec
    from forge_testing.context import bare_context, select
    from forge_monarch.plugin import MONARCH
    from forge_monarch.settings import MonarchSettings

    async def run():
        runtime = MONARCH.build(MonarchSettings(), bare_context())
        spec = ReplicaSpec(
            name="generator", index=0, placement=Placement(),
            selection=select("generator", lambda *_: object()), context=bare_context(),
        )
        await (await runtime.spawn(spec)).stop()
        await runtime.close()

    for _ in range(3):
        asyncio.run(run())
"""


def test_few_descriptors_do_not_end_a_process_that_runs_often(tmp_path: Path) -> None:
    """Monarch keeps those of an actor in the controller to the end of the process."""
    script = tmp_path / "runs.py"
    script.write_text(textwrap.dedent(MANY_RUNS))
    command = ["bash", "-c", f"ulimit -Sn 48; exec {sys.executable} {script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
