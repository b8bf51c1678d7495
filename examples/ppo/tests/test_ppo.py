"""Recipe ``ppo``: it keeps the contract, learns, and its critic goes on with the run."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from acme_ppo import plugin
from acme_ppo.recipe import Ppo
from acme_ppo.settings import PpoSettings

from forge_core import Forge, RewardComponent, RunStopped, Settings, hookimpl
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import StopAt, lines_of, small_config, untimed


class Sevens:
    """Reward ``sevens``, the share of sevens."""

    @hookimpl
    def forge_rewards(self) -> Any:
        yield RewardComponent(
            name="sevens",
            settings=Settings,
            build=lambda settings: lambda sample: sample.completion.count("7") / 3,
            summary="a test's",
        )


PLUGINS = (plugin, Sevens())
CONFIG = small_config(
    rewards={"sevens": {}},
    recipe={"use": "ppo", "mini_batches": 2, "epochs": 2},
    training={"steps": 6, "batch_size": 8, "learning_rate": 0.003},
)


class TestPpo(RecipeConformance):
    config = CONFIG
    plugins = PLUGINS


def run(folder: Path, *plugins: object, save_interval: int = 3, **training: Any) -> Path:
    changes = {
        "training": {**CONFIG["training"], **training},
        "checkpointing": {"output_dir": str(folder), "save_interval": save_interval},
    }
    return Forge(plugins=[*PLUGINS, *plugins]).run(CONFIG, changes).folder


def test_it_learns(tmp_path: Path) -> None:
    rows = lines_of(run(tmp_path, steps=48, batch_size=32, save_interval=48) / "metrics.jsonl")
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert fmean(rewards[-3:]) > rewards[0] + 0.3, rewards
    critic = [row["critic/loss"] for row in rows]
    assert min(critic[4:]) < critic[0], critic


def test_the_critic_goes_on_bit_for_bit_between_two_steps_of_a_rollout(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    with pytest.raises(RunStopped):
        run(tmp_path / "stopped", StopAt(4))
    (folder,) = (tmp_path / "stopped").iterdir()  # its checkpoint is of step 3, in a cycle of four
    Forge(plugins=PLUGINS).run(resume=folder)
    rows, resumed = (untimed(lines_of(each / "metrics.jsonl")) for each in (whole, folder))
    assert rows == resumed
    for file in ("model.safetensors", "services/critic/critic.pt"):
        held = [(each / "checkpoints" / "step_6" / file).read_bytes() for each in (whole, folder)]
        assert held[0] == held[1]


def test_advantages_are_those_of_the_paper() -> None:
    """Against the sum of eq. 16, written out."""
    mask = np.array([False, True, True, False, True])
    values = [0.0, 0.5, 0.25, 0.0, -1.0]
    recipe = Ppo(PpoSettings(discount=0.9, trace=0.8))
    gains = recipe.advantages(SimpleNamespace(loss_mask=mask, reward=2.0), values)
    surprises = [0.9 * 0.25 - 0.5, 0.9 * -1.0 - 0.25, 2.0 + 1.0]
    expected = [
        sum((0.9 * 0.8) ** (later - place) * surprises[later] for later in range(place, 3))
        for place in range(3)
    ]
    assert gains[mask] == pytest.approx(expected)
    assert not gains[~mask].any()


def test_its_config_can_be_run() -> None:
    _, (steps,) = Forge(plugins=[plugin]).check(Path(__file__).resolve().parents[1] / "ppo.yaml")
    assert steps == 200
