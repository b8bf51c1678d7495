"""What a resumed run takes from its new config, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import forge_torch.plugin
from forge_core import (
    BuildContext,
    Forge,
    GeneratorComponent,
    LossComponent,
    LossOutput,
    RunStopped,
    Selection,
    Settings,
    UsageError,
    hookimpl,
)
from forge_testing.runs import StopAt, lines_of, small_config


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of one step."""
    overrides = {
        "training.steps": 1,
        "checkpointing.output_dir": str(tmp_path_factory.mktemp("runs")),
    }
    return Forge().run(small_config(), overrides).folder


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.init.config.hidden_size": 48},
        {"model.init.characters": "0123456789+=x"},
        {"model.init.seed": 3},
    ],
    ids=str,
)
def test_another_model_is_refused(stopped: Path, overrides: dict[str, Any]) -> None:
    before = (stopped / "config.yaml").read_text()
    with pytest.raises(UsageError, match=r"model: .* has made its model from model\.init"):
        Forge().run(resume=stopped, overrides={**overrides, "training.steps": 2})
    assert (stopped / "config.yaml").read_text() == before


def test_settings_of_the_optimizer_hold(stopped: Path) -> None:
    changed = {"training.optimizer.weight_decay": 5.0, "training.optimizer.betas": [0.5, 0.6]}
    summary = Forge().run(resume=stopped, overrides={**changed, "training.steps": 2})
    assert summary.folder == stopped
    config = yaml.safe_load((stopped / "resumes" / "1" / "config.yaml").read_text())
    assert config["training"]["optimizer"]["weight_decay"] == 5.0
    assert summary.checkpoint is not None
    state = torch.load(summary.checkpoint / "trainer_state.pt", weights_only=True)
    matrices, vectors = state["optimizer"]["param_groups"]
    assert matrices["weight_decay"] == 5.0
    assert vectors["weight_decay"] == 0.0
    assert matrices["betas"] == vectors["betas"] == (0.5, 0.6)


class Seeding:
    """A generator that seeds torch when it is built, as engines do, and a loss that draws."""

    @hookimpl
    def forge_generators(self) -> Iterable[GeneratorComponent]:
        (plain,) = forge_torch.plugin.forge_generators()

        def build(settings: Any, context: BuildContext) -> Any:
            torch.manual_seed(7)
            chosen = Selection(family="generator", component=plain, settings=settings)
            return chosen.build(context)

        yield replace(plain, name="seeding", build=build, default=False)

    @hookimpl
    def forge_losses(self) -> Iterable[LossComponent]:
        def loss(logprobs: torch.Tensor, batch: Any, entropy: Any) -> LossOutput:
            return LossOutput(
                -logprobs.sum(), logprobs.numel(), maxima={"drawn": torch.rand(()).item()}
            )

        yield LossComponent(
            name="drawing", settings=Settings, build=lambda: loss, summary="a test's"
        )


def test_numbers_that_a_loss_draws_go_on(tmp_path: Path) -> None:
    def run(folder: str, *plugins: object) -> Path:
        config = small_config(
            recipe={"use": "grpo", "group_size": 8, "zero_variance": "keep"},
            generator={"use": "seeding"},
            loss={"use": "drawing"},
            checkpointing={"output_dir": str(tmp_path / folder), "save_interval": 1},
        )
        try:
            return Forge(plugins=[Seeding(), *plugins]).run(config).folder
        except RunStopped:
            (stopped,) = (tmp_path / folder).iterdir()
            return stopped

    def drawn(folder: Path) -> list[float]:
        return [row["drawn"] for row in lines_of(folder / "metrics.jsonl")]

    whole, stopped = run("whole"), run("stopped", StopAt(2))
    assert len(drawn(stopped)) == 1
    Forge(plugins=[Seeding()]).run(resume=stopped)
    assert drawn(stopped) == drawn(whole)
    assert len(set(drawn(whole))) == 3
