"""The estimator keeps its contract, is the paper's, and the model learns with it."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import acme_rloo
import pytest

from forge_core import Forge, Selection
from forge_grpo.advantages import GroupMean
from forge_testing.conformance.advantage import AdvantageConformance
from forge_testing.runs import lines_of

FOLDER = Path(__file__).parents[1]


class TestRloo(AdvantageConformance):
    @pytest.fixture
    def selection(self) -> Selection:
        (component,) = acme_rloo.forge_advantages()
        return Selection(family="advantage", component=component, settings=component.settings())


def test_by_hand() -> None:
    assert acme_rloo.rloo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert acme_rloo.rloo([1.0]) == [0.0], "where all others were left out"


def test_it_is_a_multiple_of_the_difference_to_the_mean() -> None:
    rewards = [0.5, -2.0, 3.0, 0.25, 0.5]
    expected = [5 / 4 * each for each in GroupMean()(rewards)]
    assert acme_rloo.rloo(rewards) == pytest.approx(expected)


def test_the_reward_grows(tmp_path: Path) -> None:
    summary = Forge(plugins=[acme_rloo]).run(
        FOLDER / "rloo.yaml",
        {"checkpointing.output_dir": str(tmp_path), "trackers.jsonl.episodes": 128},
    )
    rewards = [row["reward/mean"] for row in lines_of(summary.folder / "metrics.jsonl")]
    assert fmean(rewards[-5:]) > 2 * fmean(rewards[:5])
    episodes = lines_of(summary.folder / "episodes.jsonl")
    for at in range(0, len(episodes), 16):
        group = episodes[at : at + 16]
        expected = acme_rloo.rloo([episode["reward"] for episode in group])
        assert [episode["advantage"] for episode in group] == pytest.approx(expected)
