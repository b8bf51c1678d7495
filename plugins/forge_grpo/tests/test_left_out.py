"""Runs whose reward fails on some episodes, or on all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, RewardComponent, RewardSample, RunFailed, Settings, hookimpl
from forge_testing.runs import lines_of, small_config


def fails_often(sample: RewardSample) -> float:
    """A completion with a 1 or a 2 cannot be judged; the others are paid for what is above 5."""
    if set(sample.completion) & set("12"):
        raise ConnectionError("no answer from the judge")
    return sum(character in "6789" for character in sample.completion) / 3


def fails_always(sample: RewardSample) -> float:
    raise ConnectionError("no answer from the judge")


class Rewards:
    @hookimpl
    def forge_rewards(self) -> list[RewardComponent]:
        return [
            RewardComponent(name=name, settings=Settings, build=build, summary="for tests")
            for name, build in (
                ("often", lambda settings, context: fails_often),
                ("always", lambda settings, context: fails_always),
            )
        ]


def run(tmp_path: Path, rewards: dict[str, Any], **training: Any) -> Path:
    config = small_config(
        rewards=rewards,
        training={"learning_rate": 0.001, **training},
        checkpointing={"output_dir": str(tmp_path)},
        trackers={"jsonl": {"episodes": 1000}},
    )
    return Forge(plugins=[Rewards()]).run(config).folder


def test_an_episode_that_was_not_judged_is_not_compared(tmp_path: Path) -> None:
    folder = run(tmp_path, {"often": {}}, steps=2, batch_size=32)
    episodes = lines_of(folder / "episodes.jsonl")
    failed = [episode for episode in episodes if episode["failures"]]
    judged = [episode for episode in episodes if not episode["failures"]]
    assert failed
    assert all((each["advantage"], each["rewards"]) == (0.0, {}) for each in failed)
    assert any(episode["advantage"] for episode in judged)
    assert sum(episode["advantage"] for episode in judged) == pytest.approx(0, abs=1e-6)
    steps = lines_of(folder / "metrics.jsonl")
    assert sum(step["reward/left_out"] for step in steps) == len(failed)


def test_a_failure_reward_is_compared(tmp_path: Path) -> None:
    folder = run(tmp_path, {"often": {"failure_reward": -1.0}}, steps=1, batch_size=32)
    episodes = lines_of(folder / "episodes.jsonl")
    failed = [episode for episode in episodes if episode["failures"]]
    assert failed
    assert {episode["reward"] for episode in failed} == {-1.0}
    assert any(episode["advantage"] < 0 for episode in failed)


def test_a_reward_that_fails_on_the_only_group_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="reward 'always' failed on 8 of 8 episodes"):
        run(tmp_path, {"always": {}}, steps=1, batch_size=8)
