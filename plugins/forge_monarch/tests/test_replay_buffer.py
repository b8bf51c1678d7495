"""A run that samples ahead, its replay buffer on a host of its own."""

from __future__ import annotations

import os
import signal
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge
from forge_run.data.order import TaskOrder
from forge_testing.runs import small_config

CONFIG = small_config(
    transport={"use": "shm"},
    recipe={"use": "grpo", "group_size": 8, "max_staleness": 2},
    training={"steps": 2000, "batch_size": 32, "learning_rate": 0.001},
    replay_buffer={"isolate": True},
    runtime={
        "use": "monarch",
        "local_hosts": 2,
        "services": {
            "generator": {"hosts": ["local0"]},
            "trainer": {"hosts": ["local0"]},
            "replay_buffer": {"hosts": ["local1"]},
        },
    },
    trackers={"jsonl": {"episodes": 1000}},
)


def ancestors(process: int, controller: int) -> set[int]:
    """The process and those above it, up to the controller."""
    chain = [process]
    while chain[-1] > 1:
        status = Path(f"/proc/{chain[-1]}/stat").read_text().rpartition(")")[2].split()
        chain.append(int(status[1]))
    return set(takewhile(lambda pid: pid not in (0, 1, controller), chain))


def order(steps: int) -> list[list[str]]:
    """The tasks of each step, as the run's order has them."""
    (stage,) = Forge().resolve(CONFIG).stages
    context = stage.early_context()
    assert stage.dataset is not None
    dataset = stage.dataset.build(context)
    tasks = TaskOrder(len(dataset), context.seed)
    return [[dataset[index].id for index in tasks.take(4)] for _ in range(steps)]


@pytest.mark.slow
def test_the_buffer_lives_on_its_host_and_its_death_is_survived(runs: Any) -> None:
    run = runs(CONFIG)
    run.until_step(3)
    (buffer,) = run.ranks("replay_buffer")[:1]
    hosts = {
        service: ancestors(run.ranks(service)[0], run.process.pid)
        for service in ("generator", "trainer", "replay_buffer")
    }
    assert hosts["generator"] & hosts["trainer"]
    assert not hosts["replay_buffer"] & hosts["trainer"]
    os.kill(buffer, signal.SIGKILL)
    run.until(lambda: run.kinds()["replica_restarted"] == 1)
    done = len(run.lines("metrics.jsonl"))
    run.until_step(done + 3)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.printed
    assert run.kinds()["checkpoint"] == 1
    rows = run.lines("metrics.jsonl")
    assert 0 < max(row["staleness/max"] for row in rows) <= 2
    trained: dict[int, list[str]] = {}
    for episode in run.lines("episodes.jsonl"):
        trained.setdefault(episode["step"], []).append(episode["task"])
    assert [tasks[::8] for tasks in trained.values()] == order(len(rows))
    assert run.ranks() == []
