"""Runs over several hosts: played on this machine, and network namespaces with links to cut."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from forge_core import BuildContext, Placement, ReplicaSpec, Selection
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings, ServicePlacement, TlsFiles
from forge_testing.conformance.runtime import PROBE, ProbeSettings
from forge_testing.context import bare_context
from forge_testing.runs import Run, small_config, until, untimed

SCRIPT = Path(__file__).parents[3] / "scripts" / "hosts.sh"
NAMES = ("one", "two", "three")
ADDRESSES = {name: f"tls://10.77.0.{number}:26600" for number, name in enumerate(NAMES, 1)}


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
        logs = [tmp_path / "logs" / f"generator-{index}-rank0.log" for index in range(2)]
        assert [log.read_text().count(f"on host local{i}") for i, log in enumerate(logs)] == [1, 1]
        os.kill(pids[0], signal.SIGKILL)
        cause = await generators[0].wait_dead()
        assert "on host local0) was killed by SIGKILL" in cause
        assert await generators[1].call("add", (1,), {}) == 2
    finally:
        await runtime.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@dataclass
class Worker:
    """``forge worker`` on one of the hosts."""

    number: int
    process: subprocess.Popen[bytes]

    def cut(self) -> None:
        subprocess.run([SCRIPT, "cut", str(self.number)], check=True)

    def join(self) -> None:
        subprocess.run([SCRIPT, "join", str(self.number)], check=True)

    def others(self) -> list[int]:
        """Processes of the host beside the worker."""
        command = ["ip", "netns", "pids", f"forge-host{self.number}"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [int(pid) for pid in told.split() if int(pid) != self.process.pid]

    def idles(self) -> bool:
        return not self.others()


@pytest.fixture(scope="module")
def tls(certify: Callable[..., TlsFiles]) -> TlsFiles:
    """For the three hosts and this machine, as they see it."""
    return certify(*(f"10.77.0.{number}" for number in (1, 2, 3, 254)))


@pytest.fixture(scope="module")
def workers(
    hosts: None, tls: TlsFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Worker]]:
    """Three hosts, each with a worker that serves all tests; nothing is left of a run on them."""
    made = subprocess.run([SCRIPT, "up", "3"], capture_output=True, text=True, check=False)
    if made.returncode == 3:
        pytest.fail(made.stderr)
    if made.returncode:
        pytest.skip(f"no network namespaces can be made here: {made.stderr.strip()}")
    logs = tmp_path_factory.mktemp("workers")
    served = {}
    try:
        for number, name in enumerate(NAMES, 1):
            command = [SCRIPT, "exec", str(number), sys.executable, "-m", "forge_core", "worker"]
            with (logs / name).open("wb") as log:
                process = subprocess.Popen(
                    [*command, ADDRESSES[name], "--cert", tls.cert, "--key", tls.key],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            served[name] = Worker(number, process)
        until(lambda: all("waits for runs" in (logs / name).read_text() for name in NAMES))
        yield served
        for name, worker in served.items():
            assert worker.process.poll() is None, (logs / name).read_text()
            worker.process.terminate()
            assert worker.process.wait(timeout=60) == 0, (logs / name).read_text()
    finally:
        for worker in served.values():
            worker.process.kill()
            worker.process.wait()
        subprocess.run([SCRIPT, "down"], check=True)


def _config(tls: TlsFiles, hosts: tuple[str, ...] = NAMES, /, **services: Any) -> dict[str, Any]:
    """A run whose services live there; its weights go through TorchStore."""
    return small_config(
        runtime={
            "use": "monarch",
            "hosts": {name: ADDRESSES[name] for name in hosts},
            "tls": {"cert": str(tls.cert), "key": str(tls.key)},
            "services": services,
            "hang_after": 8.0,
        },
        transport={"use": "torchstore"},
        generator={"replicas": 2},
    )


def _places(run: Run) -> dict[str, list[str]]:
    """Host of each life that a rank had, by the name of its log."""
    return {
        log.stem: re.findall(r"^--- .* on host (\w+): started", log.read_text(), re.MULTILINE)
        for log in sorted((run.folder / "logs").iterdir())
    }


def _numbers(run: Run) -> list[dict[str, Any]]:
    return untimed(run.lines("metrics.jsonl"))


@pytest.mark.slow
def test_runs_over_two_and_three_hosts_have_the_numbers_of_one_process(
    runs: Callable[..., Run], workers: dict[str, Worker], tls: TlsFiles
) -> None:
    """Both at a time on the same workers; one has a trainer whose ranks meet over the network."""
    local = runs(small_config(), name="local")
    assert local.end() == 0, local.printed
    two = runs(
        _config(tls, ("one", "two"), trainer={"hosts": ["one"]}, generator={"hosts": ["two"]}),
        name="two",
    )
    three = runs(
        _config(
            tls, trainer={"hosts": ["one", "two"], "span": 2}, generator={"hosts": ["two", "three"]}
        )
        | {"trainer": {"use": "titan", "procs": 2}},
        name="three",
    )
    assert two.end() == 0, two.printed
    assert three.end() == 0, three.printed
    assert _places(two) == {
        "generator-0-rank0": ["two"],
        "generator-1-rank0": ["two"],
        "trainer-0-rank0": ["one"],
    }
    assert _places(three) == {
        "generator-0-rank0": ["two"],
        "generator-1-rank0": ["three"],
        "trainer-0-rank0": ["one"],
        "trainer-0-rank1": ["two"],
    }
    assert len(_numbers(local)) == 3
    # Two generators have half a batch each, so floats differ by rounding.
    assert _numbers(two) == [pytest.approx(line, abs=1e-5) for line in _numbers(local)]
    for ours, theirs in zip(_numbers(three), _numbers(local), strict=True):
        assert ours["reward/mean"] == pytest.approx(theirs["reward/mean"], abs=0.05)
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-3)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-2, abs=1e-3)
    until(lambda: all(worker.idles() for worker in workers.values()))


@pytest.mark.slow
def test_a_cut_generator_host_is_survived_and_comes_back(
    runs: Callable[..., Run], workers: dict[str, Worker], tls: TlsFiles
) -> None:
    run = runs(
        _config(tls, trainer={"hosts": ["one"]}, generator={"hosts": ["two", "three"]}),
        "training.steps=100000",
    )
    run.until_step(10)
    workers["three"].cut()
    run.until(lambda: run.kinds()["replica_restarted"] == 1)
    (death,) = (e for e in run.lines("events.jsonl") if e["kind"] == "replica_died")
    assert re.search(r"replica 1 .* on host three\) does not answer: .* cut off", death["message"])
    assert _places(run)["generator-1-rank0"] == ["three", "two"]
    # The host has ended what the controller cannot reach, its worker waits.
    run.until(workers["three"].idles)
    workers["three"].join()
    (replica,) = run.ranks("generator-1")
    os.kill(replica, signal.SIGKILL)
    run.until(lambda: run.kinds()["replica_restarted"] == 2)
    assert _places(run)["generator-1-rank0"] == ["three", "two", "three"]
    run.until_step(len(run.lines("metrics.jsonl")) + 5)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.printed
    for event in run.lines("events.jsonl"):
        if event["kind"] == "replica_restarted":
            assert 0 < event["data"]["seconds"] < 120
    metrics = run.lines("metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, len(metrics) + 1))
    assert all(line["groups/total"] == 4 and line["staleness/max"] == 0 for line in metrics)
    assert max(line.get("mismatch/logprob_abs_max", 0.0) for line in metrics) < 1e-4


@pytest.mark.slow
def test_a_killed_controller_and_a_cut_trainer_host(
    runs: Callable[..., Run], workers: dict[str, Worker], tls: TlsFiles
) -> None:
    """What was run for a killed controller leaves the hosts, and another run on them goes on. That
    ends with its own cause when its trainer's host is cut off, and resumes when it is back."""
    config = _config(tls, trainer={"hosts": ["one"]}, generator={"hosts": ["two"]})
    long = ("training.steps=100000", "checkpointing.save_interval=10")
    killed = runs(config, *long, name="killed")
    run = runs(config, *long, name="cut")
    killed.until_step(1)
    run.until(lambda: run.kinds()["checkpoint"])
    assert len(killed.ranks()) == 3
    started = len(run.lines("metrics.jsonl"))
    killed.kill()
    until(lambda: not killed.ranks(), limit=120)
    run.until_step(started + 10)
    workers["one"].cut()
    assert run.end() == 1, run.printed
    assert re.search(r"replica 0 of trainer .* on host one\) does not answer", run.printed)
    assert run.ranks("generator") == []
    workers["one"].join()
    until(lambda: all(worker.idles() for worker in workers.values()), limit=120)
    run.resume(f"training.steps={len(run.lines('metrics.jsonl')) + 2}")
    assert run.end() == 0, run.printed
