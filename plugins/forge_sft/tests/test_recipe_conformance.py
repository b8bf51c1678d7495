"""Recipe ``sft`` does what every recipe must."""

from __future__ import annotations

from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.runs import small_config


class TestSft(RecipeConformance):
    config = small_config(
        recipe={"use": "sft"},
        training={"steps": 4, "batch_size": 16, "learning_rate": 0.01},
    )
