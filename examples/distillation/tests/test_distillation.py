"""Recipe ``distillation``: it keeps the contract, and the KL to the teacher falls."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import acme_distillation
import pytest

from forge_core import Forge, UsageError
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import lines_of, small_config

CONFIG = small_config(
    recipe={"use": "distillation", "samples": 4},
    models={"teacher": {"init": {**small_config()["model"]["init"], "seed": 7}}},
    training={"steps": 4, "batch_size": 4, "learning_rate": 0.003},
)
CONFIG.pop("rewards")


class TestDistillation(RecipeConformance):
    config = CONFIG
    plugins = (acme_distillation,)


def test_the_kl_to_the_teacher_falls(tmp_path: Path) -> None:
    summary = Forge(plugins=[acme_distillation]).run(
        CONFIG,
        {
            "training": {"steps": 25, "batch_size": 16, "learning_rate": 0.01},
            "checkpointing.output_dir": str(tmp_path),
        },
    )
    kl = [row["teacher/kl"] for row in lines_of(summary.folder / "metrics.jsonl")]
    assert kl[0] > 0.2
    assert fmean(kl[-3:]) < 0.4 * kl[0], kl


def test_a_teacher_that_is_not_in_models_is_refused() -> None:
    app = Forge(plugins=[acme_distillation])
    with pytest.raises(UsageError, match="nanny"):
        app.check({**CONFIG, "recipe": {"use": "distillation", "teacher": "nanny"}})


def test_its_config_can_be_run() -> None:
    file = Path(__file__).resolve().parents[1] / "distillation.yaml"
    _, (steps,) = Forge(plugins=[acme_distillation]).check(file)
    assert steps == 100
