"""Whole runs on runtime ``monarch``: the same numbers as on ``local``, and faults survived."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIG: dict[str, Any] = {
    "name": "small",
    "model": {
        "init": {
            "architecture": "qwen3",
            "characters": "0123456789+=",
            "config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 16,
                "intermediate_size": 64,
                "max_position_embeddings": 64,
                "initializer_range": 0.2,
            },
        }
    },
    "dataset": {"use": "arithmetic", "low": 0, "high": 9},
    "rewards": {"exact_match": {}},
    "sampling": {"max_tokens": 3},
    "transport": {"use": "shm"},
    "generator": {"replicas": 2},
    "recipe": {"use": "grpo", "group_size": 8},
    "training": {"steps": 4, "batch_size": 32, "learning_rate": 0.001},
}
START_LIMIT = 240.0
"""Seconds a run may take, most of them imports on a machine that does other work."""


class Run:
    """A ``forge run`` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.output = folder / "runs"
        folder.mkdir(exist_ok=True)
        config = folder / "small.yaml"
        config.write_text(yaml.safe_dump({**CONFIG, "checkpointing": {"output_dir": "runs"}}))
        self.log = folder / "out.txt"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forge_core", "run", str(config), *arguments],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def folder(self) -> Path:
        return next(self.output.iterdir())

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Complete records of one of the run's files so far."""
        file = next(self.output.glob(f"*/{name}"), None)
        if file is None:
            return []
        return [json.loads(line) for line in file.read_text().split("\n")[:-1]]

    def kinds(self) -> Counter[str]:
        return Counter(event["kind"] for event in self.lines("events.jsonl"))

    def ranks(self, service: str = "") -> list[int]:
        """Processes of a service's replicas: those that print into its logs."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    output = os.readlink(process / "fd" / "1")
                except OSError:
                    continue
                if output.startswith(f"{self.output}/") and f"/logs/{service}" in output:
                    found.append(int(process.name))
        return found

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(timeout=START_LIMIT)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Any]:
    """``runs(name, *arguments)`` starts a run; what is left of it at the end is killed."""
    started: list[Run] = []

    def start(name: str, *arguments: str) -> Run:
        started.append(Run(tmp_path / name, *arguments))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.wait()


@pytest.mark.slow
def test_the_numbers_are_those_of_runtime_local(runs: Any) -> None:
    here = runs("local")
    assert here.end() == 0, here.log.read_text()
    there = runs("monarch", "--runtime", "monarch")
    assert there.end() == 0, there.log.read_text()
    metrics = [
        [{**line, "timing": None} for line in run.lines("metrics.jsonl")] for run in (here, there)
    ]
    assert len(metrics[0]) == 4
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_killed_generators_are_never_seen_by_the_run(runs: Any) -> None:
    """Every episode is counted once, under the version that sampled it; events tell of recovery."""
    kills, steps = 4, 1500  # a killed one takes some seconds to come back
    run = runs("killed", "--runtime", "monarch", f"training.steps={steps}")
    chance = random.Random(0)
    for kill in range(kills):
        run.until(lambda kill=kill: run.kinds()["replica_restarted"] == kill and run.ranks("gen"))
        done = len(run.lines("metrics.jsonl"))
        run.until(lambda done=done: len(run.lines("metrics.jsonl")) > done)
        time.sleep(chance.uniform(0, 0.5))
        os.kill(chance.choice(run.ranks("generator")), signal.SIGKILL)
    assert run.end() == 0, run.log.read_text()
    assert run.kinds()["replica_died"] == kills
    recoveries = [e for e in run.lines("events.jsonl") if e["kind"] == "replica_restarted"]
    assert all(event["data"]["seconds"] > 0 for event in recoveries)
    metrics = run.lines("metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, steps + 1))
    assert all(line["groups/total"] == 4 and line["staleness/max"] == 0 for line in metrics)
    # Sampler and trainer agree on every token, so each was sampled from the weights it names.
    assert max(line.get("mismatch/logprob_abs_max", 0.0) for line in metrics) < 1e-4
    assert run.ranks() == []


@pytest.mark.slow
def test_a_killed_trainer_ends_the_run_with_its_cause_and_a_checkpoint(runs: Any) -> None:
    run = runs(
        "trainer", "--runtime", "monarch", "training.steps=300", "checkpointing.save_interval=5"
    )
    run.until(lambda: run.kinds()["checkpoint"])
    (trainer,) = run.ranks("trainer")
    os.kill(trainer, signal.SIGKILL)
    assert run.end() == 1
    assert "replica 0 of trainer" in run.log.read_text()
    assert "was killed by SIGKILL" in run.log.read_text() or "has ended" in run.log.read_text()
    assert run.ranks() == []
    done = len(run.lines("metrics.jsonl"))
    resumed = Run(run.output.parent, "--resume", str(run.folder), f"training.steps={done + 2}")
    assert resumed.end() == 0, resumed.log.read_text()


@pytest.mark.slow
def test_a_killed_controller_leaves_no_process(runs: Any) -> None:
    run = runs("controller", "--runtime", "monarch", "training.steps=300")
    run.until(lambda: run.lines("metrics.jsonl"))
    assert len(run.ranks()) == 3
    run.process.kill()
    deadline = time.monotonic() + 20
    while run.ranks():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_good_order(runs: Any) -> None:
    run = runs("interrupted", "--runtime", "monarch", "training.steps=3000")
    run.until(lambda: run.lines("metrics.jsonl"))
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.log.read_text()
    assert run.kinds()["checkpoint"] == 1
    assert run.ranks() == []
