"""Runs with the engine: that a model learns, and what a death or ctrl-C of the engine leaves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from forge_testing.runs import Run, lines_of, scores_of

Config = dict[str, Any]

PLACES = {
    "engine_process": {"generator.engine_process": True},
    "isolate": {"generator.isolate": True},
}
"""The two ways for an engine to have a process of its own."""


@pytest.mark.slow
def test_a_model_learns(run_forge_process: Any, tmp_path: Path) -> None:
    """The quickstart's two stages, the second cut short."""
    short = ("stages.grpo.training.steps=120", "evaluation.interval=null")
    result = run_forge_process("run", "quickstart", "--generator", "vllm", *short, timeout=1500)
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    scores = scores_of(run)
    assert scores["sft", "before"] < 0.1
    assert 0.3 < scores["sft", "after"] <= 0.65
    assert scores["grpo", "after"] >= scores["sft", "after"] + 0.15
    steps = [row for row in lines_of(run / "metrics.jsonl") if row["stage"] == "grpo"]
    assert all(0 <= row["mismatch/logprob_abs_max"] < 1e-3 for row in steps)


def engine_of(run: Run) -> psutil.Process:
    """The process that holds the engine: the one below the command that has loaded vLLM."""
    (engine,) = (
        child
        for child in psutil.Process(run.process.pid).children(recursive=True)
        if any("/vllm/_C" in mapped.path for mapped in child.memory_maps())
    )
    return engine


def left(run: Run) -> list[str]:
    """Command lines of what still runs in its session, after a moment to end."""
    deadline = time.monotonic() + 5
    while (found := list(running(run))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def running(run: Run) -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            is_ours = os.getsid(process.pid) == run.process.pid
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                yield f"{process.pid}: {process.cmdline()}"


@pytest.fixture
def start(small_config: Config, runs: Callable[..., Run]) -> Callable[..., Run]:
    """``start(keys)``: a run of ``small_config`` with these dotted keys over it."""

    def begin(keys: dict[str, Any]) -> Run:
        return runs(small_config, *(f"{key}={json.dumps(value)}" for key, value in keys.items()))

    return begin


@pytest.mark.parametrize("place", PLACES)
def test_an_engine_that_is_killed_comes_back_with_current_weights(
    place: str, start: Callable[..., Run]
) -> None:
    run = start({**PLACES[place], "transport.use": "shm", "training.steps": 60})
    run.until_step(3)
    killed = time.time()
    engine_of(run).kill()
    assert run.end() == 0, run.printed
    events = run.lines("events.jsonl")
    (death,) = (event for event in events if event["kind"] == "replica_died")
    assert "replica 0" in death["message"]
    assert 0 <= death["time"] - killed < 10
    (back,) = (event for event in events if event["kind"] == "replica_restarted")
    assert back["time"] > death["time"]
    rows = run.lines("metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 61))
    # Every step has all of its episodes, once, sampled by the weights of that step.
    assert {row["groups/total"] for row in rows} == {4}
    assert {row["staleness/max"] for row in rows} == {0}
    assert all(row["mismatch/logprob_abs_max"] < 1e-3 for row in rows)
    assert left(run) == []


def test_ctrl_c_leaves_a_checkpoint_and_no_process(start: Callable[..., Run]) -> None:
    keys = {"generator.engine_process": True, "transport.use": "shm", "training.steps": 100_000}
    run = start(keys)
    run.until_step(2)
    engine_of(run)
    # A terminal sends it to every process of the command.
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() == 130, run.printed
    assert "Traceback" not in run.printed
    assert len(list((run.folder / "checkpoints").glob("step_*"))) == 1
    assert left(run) == []


def test_several_engines_with_a_process_each(start: Callable[..., Run]) -> None:
    run = start(
        {
            "generator.replicas": 2,
            "generator.isolate": True,
            "transport.use": "shm",
            "training.steps": 3,
        }
    )
    assert run.end() == 0, run.printed
    rows = run.lines("metrics.jsonl")
    assert all(row["mismatch/logprob_abs_max"] < 1e-3 for row in rows)
    assert left(run) == []


@pytest.mark.parametrize(
    ("variable", "keys"),
    [
        ({"ATEN_CPU_CAPABILITY": "default"}, {}),
        ({"CXX": "/missing/g++"}, {"generator.engine_process": True}),
    ],
)
def test_nothing_is_compiled_where_it_cannot_be(
    variable: dict[str, str],
    keys: dict[str, Any],
    start: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even the functions that vLLM's sampler compiles where the model is not compiled."""
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    run = start({"training.steps": 1, **keys})
    assert run.end() == 0, run.printed()
