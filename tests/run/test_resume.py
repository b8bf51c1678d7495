"""What a resumed run takes from its new config, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from forge_core import Forge, UsageError
from forge_testing.runs import small_config


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
    changed = {"training.weight_decay": 5.0, "training.betas": [0.5, 0.6]}
    summary = Forge().run(resume=stopped, overrides={**changed, "training.steps": 2})
    assert summary.folder == stopped
    config = yaml.safe_load((stopped / "resumes" / "1" / "config.yaml").read_text())
    assert config["training"]["weight_decay"] == 5.0
    assert summary.checkpoint is not None
    state = torch.load(summary.checkpoint / "trainer_state.pt", weights_only=True)
    matrices, vectors = state["optimizer"]["param_groups"]
    assert matrices["weight_decay"] == 5.0
    assert vectors["weight_decay"] == 0.0
    assert matrices["betas"] == vectors["betas"] == (0.5, 0.6)
