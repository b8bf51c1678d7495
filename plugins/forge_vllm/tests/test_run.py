"""Runs with the engine: that a model learns, and what a death or ctrl-C of the engine leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

Config = dict[str, Any]

PATIENCE = 600
"""Seconds that a start or an end may take on a busy machine."""

PLACES = {
    "engine_process": {"generator.engine_process": True},
    "isolate": {"generator.isolate": True},
}
"""The two ways for an engine to have a process of its own."""


@pytest.mark.slow
def test_a_model_learns(run_forge_process: Any, tmp_path: Path) -> None:
    """The quickstart's two stages, the second at half its length."""
    result = run_forge_process(
        "run",
        "quickstart-vllm",
        "stages.grpo.training.steps=250",
        "evaluation.interval=null",
        timeout=1500,
    )
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    evaluations = json.loads((run / "summary.json").read_text())["evaluations"]
    scores = {(score["stage"], score["moment"]): score["score"] for score in evaluations}
    assert scores["sft", "before"] < 0.1
    assert 0.3 < scores["sft", "after"] <= 0.65
    assert scores["grpo", "after"] >= scores["sft", "after"] + 0.15
    steps = [row for row in lines_of(run / "metrics.jsonl") if row["stage"] == "grpo"]
    assert all(0 <= row["mismatch/logprob_abs_max"] < 1e-3 for row in steps)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Run:
    """``forge run`` as a process at the head of its own session, as a terminal starts it."""

    def __init__(self, config: Path, runs: Path, log: Path) -> None:
        self._runs = runs
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forge_core", "run", str(config)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def folder(self) -> Path:
        (folder,) = self._runs.iterdir()
        return folder

    def until_step(self, step: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not any(len(lines_of(path)) >= step for path in self._runs.glob("*/metrics.jsonl")):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def engine(self) -> psutil.Process:
        """The process that holds the engine: the one below the command that has loaded vLLM."""
        (engine,) = (
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if any("/vllm/_C" in mapped.path for mapped in child.memory_maps())
        )
        return engine

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def left(self) -> list[str]:
        """Command lines of what still runs in its session, after a moment to end."""
        deadline = time.monotonic() + 5
        while (found := list(self._running())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _running(self) -> Iterator[str]:
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                is_ours = os.getsid(process.pid) == self.process.pid
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield f"{process.pid}: {process.cmdline()}"


@pytest.fixture
def start(small_config: Config, write_config: Any, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """``start(**keys)``: a run of ``small_config`` with these dotted keys over it."""
    started: list[Run] = []

    def begin(keys: dict[str, Any]) -> Run:
        for dotted, value in keys.items():
            section, key = dotted.split(".")
            small_config.setdefault(section, {})[key] = value
        run = Run(write_config(small_config), tmp_path / "runs", tmp_path / "output.txt")
        started.append(run)
        return run

    yield begin
    for run in started:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()


@pytest.mark.parametrize("place", PLACES)
def test_an_engine_that_is_killed_comes_back_with_current_weights(
    place: str, start: Callable[..., Run]
) -> None:
    run = start({**PLACES[place], "transport.use": "shm", "training.steps": 60})
    run.until_step(3)
    killed = time.time()
    run.engine().kill()
    assert run.wait() == 0, run.output
    events = lines_of(run.folder / "events.jsonl")
    (death,) = (event for event in events if event["kind"] == "replica_died")
    assert "replica 0" in death["message"]
    assert 0 <= death["time"] - killed < 5
    (back,) = (event for event in events if event["kind"] == "replica_restarted")
    assert back["time"] > death["time"]
    rows = lines_of(run.folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 61))
    # Every step has all of its episodes, once, sampled by the weights of that step.
    assert {row["groups/total"] for row in rows} == {4}
    assert {row["staleness/max"] for row in rows} == {0}
    assert all(row["mismatch/logprob_abs_max"] < 1e-3 for row in rows)
    assert run.left() == []


def test_ctrl_c_leaves_a_checkpoint_and_no_process(start: Callable[..., Run]) -> None:
    keys = {"generator.engine_process": True, "transport.use": "shm", "training.steps": 100_000}
    run = start(keys)
    run.until_step(2)
    run.engine()
    # A terminal sends it to every process of the command.
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == 130, run.output
    # At the head of a line: of ours. vLLM may log one of its own when its engine ends.
    assert "\nTraceback" not in run.output
    assert len(list((run.folder / "checkpoints").glob("step_*"))) == 1
    assert run.left() == []


def test_several_engines_with_a_process_each(start: Callable[..., Run]) -> None:
    run = start(
        {
            "generator.replicas": 2,
            "generator.isolate": True,
            "transport.use": "shm",
            "training.steps": 3,
        }
    )
    assert run.wait() == 0, run.output
    rows = lines_of(run.folder / "metrics.jsonl")
    assert all(row["mismatch/logprob_abs_max"] < 1e-3 for row in rows)
    assert run.left() == []
