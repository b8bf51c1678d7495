"""Whole runs in which the environment gives the reward, and completions end with strings."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from forge_core import Forge, UsageError
from forge_testing.runs import lines_of, small_config

FILE = '''
    from forge_core import Response


    class Digits:
        """Asks for one digit after another, and pays for those that are large."""

        max_turns = 3
        gives_rewards = True

        async def start(self, task, seed):
            return Episode(task.prompt)


    class Episode:
        def __init__(self, prompt):
            self.prompt = prompt
            self.turns = 0

        async def respond(self, completion, finish_reason):
            self.turns += 1
            large = sum(digit in "56789" for digit in completion)
            return Response(
                f"{self.turns}=", reward=large / 3, metrics={"turns": self.turns, "large": large}
            )

        async def close(self):
            Episode.closed = getattr(Episode, "closed", 0) + 1


    def count(sample):
        return float(len(sample.observations))
'''


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "digits.py"
    file.write_text(dedent(FILE))
    return small_config(
        environment={"use": f"{file}:Digits", "weight": 2.0, "concurrency": 3},
        rewards={},
        sampling={"max_tokens": 8, "stop": [str(digit) for digit in range(10)]},
        training={"steps": 2, "batch_size": 16, "learning_rate": 0.001},
        eval_dataset={"use": "arithmetic", "low": 0, "high": 9, "split": "test"},
        evaluation={"tasks": 4},
        checkpointing={"output_dir": str(tmp_path / "runs")},
    )


def test_a_run_without_rewards_but_the_environments(config: dict[str, Any]) -> None:
    summary = Forge().run(config)
    folder = summary.folder
    for line in lines_of(folder / "metrics.jsonl"):
        assert line["reward/mean"] == pytest.approx(2 * line["reward/part/environment"])
        assert line["environment/turns"] > 1
    for episode in lines_of(folder / "episodes.jsonl"):
        given = [reward for reward in episode["turn_rewards"] if reward is not None]
        assert episode["rewards"] == {"environment": pytest.approx(sum(given))}
        assert episode["observations"] == [f"{n + 1}=" for n in range(len(given))]
        for said in episode["completions"]:
            digits = [character for character in said if character.isdigit()]
            assert digits in ([], [said[-1:]])  # the first digit ends it, if nothing did before
    assert set(summary.evaluations[0].parts) == {"environment"}


def test_rewards_see_what_the_environment_said(config: dict[str, Any], tmp_path: Path) -> None:
    config["rewards"] = {"count": {"use": f"{tmp_path}/digits.py:count"}}
    folder = Forge().run(config).folder
    for episode in lines_of(folder / "episodes.jsonl"):
        assert set(episode["rewards"]) == {"count", "environment"}
        assert episode["rewards"]["count"] == len(episode["observations"])


def test_a_part_cannot_have_the_environments_name(config: dict[str, Any]) -> None:
    config["rewards"] = {"environment": {"use": "exact_match"}}
    with pytest.raises(
        UsageError, match=r"rewards\.environment: what the environment itself gives"
    ):
        Forge().check(config)


def test_rewards_are_needed_where_the_environment_gives_none(config: dict[str, Any]) -> None:
    config["environment"] = {"use": "single_turn"}
    del config["eval_dataset"], config["evaluation"]
    with pytest.raises(UsageError, match=r"rewards: recipe 'grpo' .* needs this section"):
        Forge().check(config)
