"""Replicas on several hosts: played on this machine, and as network namespaces with real links."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forge_core import BuildContext, Placement, Selection
from forge_core.services import ReplicaSpec
from forge_core.testing.conformance.runtime import PROBE, ProbeSettings
from forge_core.testing.context import bare_context
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings, ServicePlacement

HOSTS = Path(__file__).parents[3] / "scripts" / "hosts.sh"


def _spec(tmp_path: Path, name: str, index: int = 0, procs: int = 1) -> ReplicaSpec:
    context: BuildContext = replace(bare_context(), logs=tmp_path / "logs")
    return ReplicaSpec(
        name=name,
        index=index,
        placement=Placement(procs=procs),
        selection=Selection(
            family="generator", component=PROBE, settings=ProbeSettings(folder=tmp_path)
        ),
        context=context,
    )


async def test_replicas_on_played_hosts(tmp_path: Path) -> None:
    """One host each, one replica over both; a death is noticed; nothing is left."""
    settings = MonarchSettings(local_hosts=2, services={"trainer": ServicePlacement(span=2)})
    runtime = MONARCH.build(settings, bare_context())
    pids: list[int] = []
    try:
        trainer = await runtime.spawn(_spec(tmp_path, "trainer", procs=2))
        assert await trainer.call("place", (), {}) == (0, 0, 2)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        assert await trainer.call("environment", names, {}) == ["0", "0", "2", "1"]
        generators = [await runtime.spawn(_spec(tmp_path, "generator", i)) for i in range(2)]
        pids = [await replica.call("pid", (), {}) for replica in generators]
        parents = {
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in pids
        }
        assert len(parents) == 2, "each on a host of its own"
        os.kill(pids[0], signal.SIGKILL)
        cause = await generators[0].wait_dead()
        assert "SIGKILL" in cause or "has ended" in cause
        assert await generators[1].call("add", (1,), {}) == 2
    finally:
        await runtime.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture
def namespaces():
    """Two hosts, 10.77.0.1 and 10.77.0.2, each with a worker."""
    made = subprocess.run([HOSTS, "up", "2"], capture_output=True, text=True, check=False)
    if made.returncode:
        subprocess.run([HOSTS, "down"], capture_output=True, check=False)
        pytest.skip(f"no network namespaces can be made here: {made.stderr.strip()}")
    workers = [
        subprocess.Popen(
            [
                *(HOSTS, "exec", str(n), sys.executable, "-m", "forge_core"),
                *("worker", f"tcp://10.77.0.{n}:26600"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for n in (1, 2)
    ]
    yield
    for worker in workers:
        worker.kill()
        worker.wait()
    subprocess.run([HOSTS, "down"], check=True)


# In a process of its own: what Monarch listens on cannot change once it was used.
PROGRAM = """
import asyncio, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_hosts import HOSTS, MONARCH, MonarchSettings, ServicePlacement, _spec, bare_context

async def main(folder):
    settings = MonarchSettings(
        hosts={"one": "tcp://10.77.0.1:26600", "two": "tcp://10.77.0.2:26600"},
        services={"trainer": ServicePlacement(span=2)},
        hang_after=5,
    )
    runtime = MONARCH.build(settings, bare_context())
    trainer = await runtime.spawn(_spec(folder, "trainer", procs=2))
    assert await trainer.call("environment", ("MASTER_ADDR",), {}) == ["10.77.0.1"]
    await trainer.stop()
    generators = [await runtime.spawn(_spec(folder, "generator", i)) for i in range(2)]
    in_flight = asyncio.ensure_future(generators[1].call("slow_index", (600,), {}))
    await asyncio.sleep(0.5)
    subprocess.run([HOSTS, "cut", "2"], check=True)
    cause = await asyncio.wait_for(generators[1].wait_dead(), 60)
    assert "cut off" in cause, cause
    (death,) = await asyncio.gather(in_flight, return_exceptions=True)
    assert type(death).__name__ == "ReplicaDied", death
    await generators[1].stop()
    assert await generators[0].call("add", (1,), {}) == 2
    back = await runtime.spawn(_spec(folder, "generator", 1))  # on the host that is left
    assert await back.call("place", (), {}) == (1, 0, 1)
    await runtime.close()

asyncio.run(main(Path(sys.argv[2])))
print("survived")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
def test_a_host_that_is_cut_off(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "survived" in done.stdout, done.stderr


def test_a_host_without_a_worker_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "forge_core", "run", "quickstart", "--runtime", "monarch"),
            *("--transport", "shm", "runtime.hosts={far: tcp://127.0.0.1:9}"),
            f"checkpointing.output_dir={tmp_path}",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "runtime.hosts.far: no worker answers at tcp://127.0.0.1:9" in done.stderr
    assert "forge worker tcp://127.0.0.1:9" in done.stderr
