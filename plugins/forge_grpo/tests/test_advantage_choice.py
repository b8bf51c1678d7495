"""Which estimator recipe ``grpo`` takes, what it is divided by, and what is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from forge_core import Forge, PluginError, RunFailed, UsageError, hookimpl
from forge_grpo.advantages import EPSILON
from forge_run.unused import unused_keys
from forge_testing.context import component
from forge_testing.runs import lines_of, small_config

ESTIMATORS = """
def above(rewards, *, bar: float = 0.0):
    "How far above a bar."
    return [reward - bar for reward in rewards]

def divided(rewards):
    return above(rewards)

divided.scale = "std"

def badly(rewards):
    return rewards

badly.scale = "mean"

def short(rewards):
    return rewards[1:]
"""


class Sevens:
    """Reward ``sevens``, the share of sevens."""

    @hookimpl
    def forge_rewards(self) -> Any:
        share = lambda sample: sample.completion.count("7") / 3  # noqa: E731
        yield component("reward", lambda settings, context: share, name="sevens")


@pytest.fixture
def estimators(tmp_path: Path) -> Path:
    file = tmp_path / "estimators.py"
    file.write_text(ESTIMATORS, encoding="utf-8")
    return file


def config(**sections: Any) -> dict[str, Any]:
    training = {"steps": 1, "batch_size": 32, "learning_rate": 0.003}
    return small_config(rewards={"sevens": {}}, training=training, **sections)


def groups(folder: Path, changes: dict[str, Any]) -> list[list[tuple[float, float]]]:
    """Reward and advantage of each episode of a step, by group."""
    more = {"checkpointing.output_dir": str(folder), "trackers.jsonl.episodes": 1000}
    run = Forge(plugins=[Sevens()]).run(config(), more | changes).folder
    found: dict[str, list[tuple[float, float]]] = {}
    for episode in lines_of(run / "episodes.jsonl"):
        found.setdefault(episode["task"], []).append((episode["reward"], episode["advantage"]))
    assert any(len({reward for reward, _ in group}) > 1 for group in found.values())
    return list(found.values())


@pytest.mark.parametrize(
    ("changes", "divides"),
    [
        ({}, True),
        ({"advantage.use": "above", "advantage.bar": 0.25}, False),
        ({"advantage.use": "divided"}, True),
        ({"advantage.use": "divided", "recipe.advantage_scale": "none"}, False),
    ],
    ids=str,
)
def test_the_scale_is_the_estimators_or_the_configs(
    estimators: Path, tmp_path: Path, changes: dict[str, Any], divides: bool
) -> None:
    if name := changes.get("advantage.use"):
        changes = changes | {"advantage.use": f"{estimators}:{name}"}
    for group in groups(tmp_path, changes):
        rewards = [reward for reward, _ in group]
        baseline = changes.get("advantage.bar", 0.0) if name else fmean(rewards)
        varied = divides and len(set(rewards)) > 1
        divisor = stdev(rewards) + EPSILON if varied else 1.0
        assert [each for _, each in group] == [(reward - baseline) / divisor for reward in rewards]


def test_what_it_returns_is_checked(estimators: Path, tmp_path: Path) -> None:
    message = r"advantage '.*short' \(.*estimators.py\): returned 7 advantages for 8 rewards"
    with pytest.raises(RunFailed, match=message):
        groups(tmp_path, {"advantage.use": f"{estimators}:short"})


def test_what_cannot_work_is_refused_before_the_start(estimators: Path) -> None:
    app = Forge(plugins=[Sevens()])
    with pytest.raises(UsageError, match=r"^advantage: recipe 'grpo' .* needs this section"):
        app.check(config(), {"advantage": None})
    with pytest.raises(PluginError, match=r"badly' .*: scale must be 'std' or 'none', not 'mean'"):
        app.check(config(), {"advantage.use": f"{estimators}:badly"})


def test_a_recipe_that_does_not_use_it_says_so(estimators: Path) -> None:
    chosen = {"advantage.use": f"{estimators}:above"}
    sft = config(recipe={"use": "sft"})
    lines = unused_keys(Forge(plugins=[Sevens()]).resolve(sft, chosen))
    assert "advantage: does nothing: recipe 'sft' (stage 'sft') estimates no advantages" in lines
