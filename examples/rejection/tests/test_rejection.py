"""The recipe of docs/recipes.md keeps its contract, and what it keeps grows."""

from __future__ import annotations

from pathlib import Path

import acme_rejection

from forge_core import Forge
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import lines_of, small_config

FOLDER = Path(__file__).parents[1]


class TestRejection(RecipeConformance):
    config = small_config(
        recipe={"use": "rejection", "tasks": 4, "samples": 8, "threshold": 0.0},
        training={"steps": 4, "learning_rate": 0.01},
    )
    plugins = (acme_rejection,)


def test_the_model_learns_from_the_answers_that_were_kept(tmp_path: Path) -> None:
    summary = Forge(plugins=[acme_rejection]).run(
        FOLDER / "rejection.yaml", {"checkpointing.output_dir": str(tmp_path)}
    )
    kept = [row["kept"] for row in lines_of(summary.folder / "metrics.jsonl")]
    assert len(kept) == 20
    assert sum(kept[-5:]) > 2 * sum(kept[:5])
