"""What a step says of its episodes."""

from __future__ import annotations

import pytest

from forge_core import Completion, Episode, Group, Task, Turn
from forge_grpo.statistics import rollout_metrics


def episode(reward: float, advantage: float, *versions: int, truncated: bool = False) -> Episode:
    length = len(versions)
    sampled = Completion([7] * length, [-1.0] * length, versions, "stop")
    return Episode(
        Task("t", "?"),
        [Turn("prompt", [1, 2, 3]), Turn("completion", sampled.tokens, sampled)],
        truncated=truncated,
        rewards={"right": reward, "form": 0.5},
        reward=reward,
        advantage=advantage,
    )


def test_episodes_left_out_are_in_no_mean_of_rewards() -> None:
    task = Task("t", "?")
    failed = episode(0.5, 0.0, 4)
    failed.left_out = True
    del failed.rewards["right"]
    metrics = rollout_metrics([Group(task, [episode(1.0, 0.0, 4), failed])])
    assert (metrics["reward/mean"], metrics["reward/part/right"]) == (1.0, 1.0)
    assert (metrics["reward/left_out"], metrics["completion/length_mean"]) == (1, 1)


def test_rollout_metrics() -> None:
    task = Task("t", "?")
    failed = episode(0.0, 0.0, 4)
    failed.failures["right"] = "ValueError: no"
    groups = [
        Group(task, [episode(1.0, 0.7, 3, 3, 4), episode(0.0, -0.7, 4, 4, truncated=True)]),
        Group(task, [failed, episode(0.0, 0.0)]),
    ]
    metrics = rollout_metrics(groups)
    assert metrics == {
        "reward/mean": 0.25,
        "reward/std": pytest.approx(0.4330127),
        "reward/part/right": 0.25,
        "reward/part/form": 0.5,
        "reward/failed": 1,
        "reward/left_out": 0,
        "completion/length_mean": 1.5,
        "completion/length_max": 3,
        "completion/truncated": 0.25,
        "groups/zero_variance": 1,
        "groups/total": 2,
        "environment/failed": 0,
        "environment/dropped": 0,
    }
