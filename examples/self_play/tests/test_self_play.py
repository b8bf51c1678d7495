"""The recipe keeps its contract, and both policies are trained, published and resumed."""

from __future__ import annotations

from pathlib import Path

import acme_self_play
import pytest

from forge_core import Forge, RunStopped, UsageError
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import StopAt, lines_of, small_config, untimed

FOLDER = Path(__file__).parents[1]


class TestSelfPlay(RecipeConformance):
    config = small_config(
        recipe={"use": "self_play", "tasks": 4, "games": 8},
        training={"steps": 4, "learning_rate": 0.003},
    )
    plugins = (acme_self_play,)


def config(folder: Path) -> dict:
    places = {"output_dir": str(folder), "save_interval": 1, "keep": 100}
    return {"checkpointing": places, "training.steps": 3}


def test_both_policies_learn_and_go_on_bit_for_bit(tmp_path: Path) -> None:
    file = FOLDER / "self_play.yaml"
    whole = Forge(plugins=[acme_self_play]).run(file, config(tmp_path / "whole")).folder
    with pytest.raises(RunStopped):
        Forge(plugins=[acme_self_play, StopAt(2)]).run(file, config(tmp_path / "stopped"))
    (folder,) = (tmp_path / "stopped").iterdir()
    Forge(plugins=[acme_self_play]).run(resume=folder)
    assert untimed(lines_of(whole / "metrics.jsonl")) == untimed(lines_of(folder / "metrics.jsonl"))

    def weights(run: Path, step: int, policy: str) -> bytes:
        return (run / "checkpoints" / f"step_{step}" / policy / "model.safetensors").read_bytes()

    for policy in ("", "services/rival"):
        assert weights(whole, 3, policy) == weights(folder, 3, policy)
        assert weights(whole, 1, policy) != weights(whole, 3, policy)
    assert weights(whole, 3, "") != weights(whole, 3, "services/rival")


def test_who_plays_at_temperature_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sampling\.temperature"):
        Forge(plugins=[acme_self_play]).check(
            FOLDER / "self_play.yaml", {"sampling.temperature": 0}
        )
