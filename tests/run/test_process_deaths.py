"""A whole run whose generator and trainer are processes of their own, and one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

CONFIG = {
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
    "recipe": {"use": "grpo", "group_size": 8},
    "dataset": {"use": "arithmetic", "low": 0, "high": 9},
    "rewards": {"exact_match": {}},
    "sampling": {"max_tokens": 3},
    "training": {"steps": 6, "batch_size": 64, "learning_rate": 0.01},
    "checkpointing": {"save_interval": 1},
    "evaluation": {"interval": None},
    "generator": {"isolate": True},
    "trainer": {"isolate": True},
}


class Run:
    """``forge run`` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "small.yaml").write_text(yaml.safe_dump(CONFIG))
        self.output = folder / "output"
        self.runs = folder / "runs"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forge_core", "run", *arguments],
            cwd=folder,
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
        )

    @property
    def folder(self) -> Path:
        (folder,) = self.runs.iterdir()
        return folder

    def until_step(self, step: int) -> None:
        """Wait for the record of a step."""
        until(lambda: self.runs.is_dir() and len(self.lines("metrics.jsonl")) >= step)

    def lines(self, name: str) -> list[dict[str, object]]:
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def rank(self, service: str) -> int:
        """Process id of a service's only rank."""
        log = str(self.folder / "logs" / f"{service}-0-rank0.log")
        (outer,) = [pid for pid in children(self.process.pid) if standard_output(pid) == log]
        (inner,) = children(outer)
        return inner

    def end(self) -> int:
        return self.process.wait(timeout=300)


def until(condition, limit=180.0):
    stop = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Of all its threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def standard_output(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def start(tmp_path):
    runs: list[Run] = []

    def make(*arguments: str) -> Run:
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    yield make
    for run in runs:
        run.process.kill()
        run.process.wait()


def test_a_killed_generator_comes_back_with_the_current_weights_and_the_run_ends_well(start):
    run = start("small.yaml")
    run.until_step(2)
    trainer = run.rank("trainer")
    os.kill(run.rank("generator"), signal.SIGKILL)
    assert run.end() == 0, run.output.read_text()
    kinds = [event["kind"] for event in run.lines("events.jsonl")]
    assert kinds.count("replica_died") == kinds.count("replica_restarted") == 1
    records = run.lines("metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    # Sampler and trainer agree on every step: the generator never sampled from old weights.
    assert all(record["mismatch/logprob_abs_mean"] < 1e-4 for record in records)
    assert not alive(trainer)


def test_a_killed_trainer_ends_the_run_with_its_cause_and_the_checkpoint_resumes(start):
    run = start("small.yaml")
    run.until_step(2)
    os.kill(run.rank("trainer"), signal.SIGKILL)
    assert run.end() == 1
    errors = [line for line in run.output.read_text().splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "trainer torch" in errors[0]
    assert "replica 0 of trainer" in errors[0]
    assert "was killed by SIGKILL" in errors[0]
    folder = run.folder
    done = len(run.lines("metrics.jsonl"))
    assert 2 <= done < 6
    again = start("--resume", str(folder))
    assert again.end() == 0, again.output.read_text()
    assert run.lines("metrics.jsonl")[-1]["step"] == 6


def test_a_killed_or_interrupted_controller_leaves_no_process_and_no_shared_memory(start):
    run = start("small.yaml")
    run.until_step(2)
    ranks = [run.rank("trainer"), run.rank("generator")]
    run.process.kill()
    run.process.wait()
    until(lambda: not any(alive(pid) for pid in ranks), limit=10)
    again = start("--resume", str(run.folder))
    again.until_step(3)
    ranks = [again.rank("trainer"), again.rank("generator")]
    again.process.send_signal(signal.SIGINT)
    assert again.end() == 130, again.output.read_text()
    assert not any(alive(pid) for pid in ranks)
    assert not [path for path in Path("/dev/shm").iterdir() if run.folder.name in path.name]
