"""The optimizer keeps its contract, is the paper's, learns, and goes on exactly."""

from __future__ import annotations

from pathlib import Path

import acme_lion
import pytest
import torch

from forge_core import Forge, Selection
from forge_testing.conformance.optimizer import OptimizerConformance
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import lines_of, small_config

FOLDER = Path(__file__).parents[1]


class TestLion(OptimizerConformance):
    @pytest.fixture(params=[{}, {"betas": (0.95, 0.98), "weight_decay": 0.1}], ids=str)
    def selection(self, request: pytest.FixtureRequest) -> Selection:
        (component,) = acme_lion.forge_optimizers()
        settings = component.settings(**request.param)
        return Selection(family="optimizer", component=component, settings=settings)


def test_two_steps_by_hand() -> None:
    """Of algorithm 2: the momentum of the first gradient outweighs the second, or does not."""
    weight = torch.tensor([1.0, -1.0], requires_grad=True)
    settings = acme_lion.LionSettings(betas=(0.9, 0.5), weight_decay=0.5)
    optimizer = acme_lion.build_lion(settings)([{"params": [weight], "lr": 0.1}])
    for gradient in ([2.0, -4.0], [-1.0, 40.0]):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    # The momentum after the first is (1, -2), so the second goes along the signs of
    # 0.9 x 1 + 0.1 x -1 and 0.9 x -2 + 0.1 x 40; those of the first are + and -.
    expected = [(1 * 0.95 - 0.1) * 0.95 - 0.1, (-1 * 0.95 + 0.1) * 0.95 - 0.1]
    torch.testing.assert_close(weight.detach(), torch.tensor(expected))


class TestRun(RecipeConformance):
    """Recipe ``sft`` with it: among other things, a run that goes on ends the same bit for bit."""

    config = small_config(
        recipe={"use": "sft"},
        training={
            "steps": 4,
            "batch_size": 8,
            "learning_rate": 0.001,
            "optimizer": {"use": "lion", "weight_decay": 0.1},
        },
    )
    plugins = (acme_lion,)


def test_the_model_learns(tmp_path: Path) -> None:
    summary = Forge(plugins=[acme_lion]).run(
        FOLDER / "lion.yaml", {"checkpointing.output_dir": str(tmp_path)}
    )
    losses = [row["loss"] for row in lines_of(summary.folder / "metrics.jsonl")]
    assert losses[-1] < 0.7 * losses[0]
