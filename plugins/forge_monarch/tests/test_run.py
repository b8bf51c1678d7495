"""Whole runs on runtime ``monarch``: the same numbers as on ``local``, and faults survived."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from forge_testing.runs import Run, small_config, until, untimed

Runs = Callable[..., Run]

CONFIG = small_config(
    transport={"use": "shm"},
    generator={"replicas": 2},
    training={"steps": 4, "batch_size": 32, "learning_rate": 0.001},
)


@pytest.mark.slow
def test_the_numbers_are_those_of_runtime_local(runs: Runs) -> None:
    here = runs(CONFIG, name="local")
    assert here.end() == 0, here.printed
    there = runs(CONFIG, "--runtime", "monarch", name="monarch")
    assert there.end() == 0, there.printed
    metrics = [untimed(run.lines("metrics.jsonl")) for run in (here, there)]
    assert len(metrics[0]) == 4
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_killed_generators_are_never_seen_by_the_run(runs: Runs) -> None:
    """Every episode is counted once, under the version that sampled it; events tell of recovery."""
    kills, steps = 4, 1500  # a killed one takes some seconds to come back
    run = runs(CONFIG, "--runtime", "monarch", f"training.steps={steps}")
    chance = random.Random(0)
    for kill in range(kills):
        run.until(lambda kill=kill: run.kinds()["replica_restarted"] == kill and run.ranks("gen"))
        done = len(run.lines("metrics.jsonl"))
        run.until(lambda done=done: len(run.lines("metrics.jsonl")) > done)
        time.sleep(chance.uniform(0, 0.5))
        os.kill(chance.choice(run.ranks("generator")), signal.SIGKILL)
    assert run.end() == 0, run.printed
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
def test_a_killed_trainer_ends_the_run_with_its_cause_and_a_checkpoint(runs: Runs) -> None:
    run = runs(
        CONFIG, "--runtime", "monarch", "training.steps=300", "checkpointing.save_interval=5"
    )
    run.until(lambda: run.kinds()["checkpoint"])
    (trainer,) = run.ranks("trainer")
    os.kill(trainer, signal.SIGKILL)
    assert run.end() == 1
    assert "replica 0 of trainer" in run.printed
    assert "was killed by SIGKILL" in run.printed or "has ended" in run.printed
    assert run.ranks() == []
    done = len(run.lines("metrics.jsonl"))
    run.resume(f"training.steps={done + 2}")
    assert run.end() == 0, run.printed


@pytest.mark.slow
def test_a_killed_controller_leaves_no_process(runs: Runs) -> None:
    run = runs(CONFIG, "--runtime", "monarch", "training.steps=300")
    run.until(lambda: run.lines("metrics.jsonl"))
    assert len(run.ranks()) == 3
    run.process.kill()
    until(lambda: not run.ranks(), limit=120)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_good_order(runs: Runs) -> None:
    run = runs(CONFIG, "--runtime", "monarch", "training.steps=3000")
    run.until(lambda: run.lines("metrics.jsonl"))
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.printed
    assert run.kinds()["checkpoint"] == 1
    assert run.ranks() == []
