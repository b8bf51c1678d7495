"""A reference and reward workers with places of their own: the same numbers, and kills survived."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_testing.reward_processes import install_slow_reward
from forge_testing.runs import Run, small_config

STEPS, EPISODES = 16, 32

CONFIG = small_config(
    rewards={"slow": {"deadline": 300}},
    loss={"use": "grpo", "kl_coef": 0.1},
    training={"steps": STEPS, "batch_size": EPISODES, "learning_rate": 0.003},
    trackers={"jsonl": {"episodes": EPISODES}},
)

PLACED = CONFIG | {
    "transport": {"use": "shm"},
    "reference": {"use": "torch"},
    "reward_workers": {"replicas": 2},
    "runtime": {
        "use": "monarch",
        "local_hosts": 2,
        "services": {
            "trainer": {"hosts": ["local0"]},
            "generator": {"hosts": ["local0"]},
            "reference": {"hosts": ["local1"]},
            "rewards": {"hosts": ["local0", "local1"]},
        },
    },
}

Start = Callable[..., Run]


@pytest.fixture
def start(runs: Start, tmp_path: Path) -> Start:
    """``start(config, name, *arguments)``: a run that finds the reward."""

    def make(config: dict[str, Any], name: str, *arguments: str) -> Run:
        install_slow_reward(tmp_path / name)
        return runs(config, *arguments, name=name)

    return make


@pytest.mark.slow
def test_kills_of_the_reference_and_of_reward_workers_change_no_number(start: Start) -> None:
    plain = start(CONFIG, "plain")
    assert plain.end() == 0, plain.printed
    run = start(PLACED, "placed")
    run.until_step(2)
    assert len(run.ranks("reference")) == 1
    assert len(run.ranks("rewards")) == 2

    kills = 0
    for services in (["reference"], ["rewards-0"], ["reference", "rewards-1"], ["rewards"]):
        done = len(run.lines("metrics.jsonl"))
        for service in services:
            run.until(lambda service=service: run.ranks(service))
            for rank in run.ranks(service):
                os.kill(rank, signal.SIGKILL)
                kills += 1
        run.until_step(done + 2)
    assert run.end() == 0, run.printed

    events = run.lines("events.jsonl")
    died = [event for event in events if event["kind"] == "replica_died"]
    assert len(died) == kills
    assert {event["data"]["service"] for event in died} == {"reference", "rewards"}
    back = [event["data"] for event in events if event["kind"] == "replica_restarted"]
    assert {data["service"] for data in back} == {"reference", "rewards"}
    assert all(data["seconds"] > 0 for data in back)
    assert run.kinds()["reward_failed"] == 0
    assert run.ranks() == []

    episodes = run.lines("episodes.jsonl")
    assert len(episodes) == STEPS * EPISODES
    assert [episode["reward"] for episode in episodes] == [
        episode["reward"] for episode in plain.lines("episodes.jsonl")
    ]
    theirs, ours = plain.lines("metrics.jsonl"), run.lines("metrics.jsonl")
    assert len(theirs) == len(ours) == STEPS
    assert max(line["kl"] for line in theirs) > 1e-4
    for before, after in zip(theirs, ours, strict=True):
        timing = after.pop("timing")
        assert timing["reference_calls"] == 1
        before.pop("timing")
        assert after == pytest.approx(before, abs=1e-5)
