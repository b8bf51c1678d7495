"""A run whose reward process is killed again and again: it ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_core.testing.distributions import FakeSite
from forge_core.testing.runs import Run, small_config, untimed

KILLS = 10
SEED = int(os.environ.get("KILLS_SEED", "0"))
"""Of the moments; ``KILLS_SEED=7`` draws others."""

SLOW = '''
    """Reward ``slow``: takes its time, so that it is killed while it judges."""

    import time
    import zlib

    from forge_core import Component, Settings, hookimpl


    def slow(sample):
        time.sleep(0.003)
        return zlib.crc32(sample.completion.encode()) % 100 / 100


    def build(settings, context):
        return slow


    @hookimpl
    def forge_rewards():
        yield Component(name="slow", settings=Settings, build=build, summary="takes its time")
'''


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
        (tmp_path / name).mkdir()
        FakeSite(tmp_path / name)("slow-reward", SLOW)
    undisturbed = runs(config, name="undisturbed")
    assert undisturbed.end() == 0, undisturbed.printed
    run = runs(config, name="killed")
    chance = random.Random(SEED)
    killed = []
    # Between two kills a step is done: what was being judged has been judged by then.
    for moment in range(1, 2 * KILLS, 2):
        run.until_step(moment)
        time.sleep(chance.uniform(0, 0.15))
        run.until(lambda: _processes(run))
        killed.append(chance.choice(_processes(run)))
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


def _processes(run: Run) -> list[int]:
    """Processes that judge, and those that stand over them."""
    parents = {}
    judging = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stat = (process / "stat").read_text().rpartition(")")[2].split()
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            parents[int(process.name)] = int(stat[1])
            if b"forge_core.rewards.worker" in words and stat[0] not in "ZX":
                judging.append(int(process.name))

    def ours(pid: int) -> bool:
        return pid == run.process.pid or (pid in parents and ours(parents[pid]))

    return [pid for pid in judging if ours(pid)]
