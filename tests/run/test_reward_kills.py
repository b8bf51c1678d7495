"""A run whose reward process is killed again and again: it ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_testing.reward_processes import install_slow_reward, reward_processes
from forge_testing.runs import Run, small_config, untimed

KILLS = 10
SEED = int(os.environ.get("KILLS_SEED", "0"))
"""Of the moments; ``KILLS_SEED=7`` draws others."""


def test_ten_kills_of_the_reward_process_change_nothing(
    runs: Callable[..., Run], tmp_path: Path
) -> None:
    steps = 3 * KILLS
    config = small_config(
        rewards={"slow": {"deadline": 300}},
        training={"steps": steps, "batch_size": 32, "learning_rate": 0.003},
        trackers={"jsonl": {"episodes": 32}},
    )
    for name in ("undisturbed", "killed"):
        install_slow_reward(tmp_path / name)
    undisturbed = runs(config, name="undisturbed")
    assert undisturbed.end() == 0, undisturbed.printed
    run = runs(config, name="killed")
    chance = random.Random(SEED)
    killed = []
    # Between two kills a step is done: what was being judged has been judged by then.
    for moment in range(1, 2 * KILLS, 2):
        run.until_step(moment)
        time.sleep(chance.uniform(0, 0.15))
        run.until(lambda: reward_processes(run))
        killed.append(chance.choice(reward_processes(run))[0])
        os.kill(killed[-1], signal.SIGKILL)
    assert run.end() == 0, run.printed
    assert len(set(killed)) == KILLS
    assert run.kinds()["reward_failed"] == 0
    assert 0 < run.kinds()["reward_retried"] <= KILLS
    assert _records(run, "metrics.jsonl") == _records(undisturbed, "metrics.jsonl")
    assert _records(run, "episodes.jsonl") == _records(undisturbed, "episodes.jsonl")
    assert len(_records(run, "episodes.jsonl")) == 32 * steps


def _records(run: Run, name: str) -> list[dict[str, Any]]:
    return untimed(run.lines(name))
