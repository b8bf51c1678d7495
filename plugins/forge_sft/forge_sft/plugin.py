"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import (
    DatasetComponent,
    LossComponent,
    RecipeComponent,
    hookimpl,
)
from forge_sft.checks import check_recipe, check_tasks, max_tokens
from forge_sft.settings import CrossEntropySettings, JsonlSettings, SftSettings


@hookimpl
def forge_recipes() -> Iterable[RecipeComponent]:
    yield RecipeComponent(
        name="sft",
        settings=SftSettings,
        build="forge_sft.recipe:SftRecipe",
        requires={"dataset", "trainer", "loss"},
        defaults={"loss": {"use": "cross_entropy"}, "training": {"batch_size": 8}},
        check=check_recipe,
        check_tasks=check_tasks,
        max_tokens=max_tokens,
        summary="supervised fine-tuning on responses",
        default=True,
    )


@hookimpl
def forge_losses() -> Iterable[LossComponent]:
    yield LossComponent(
        name="cross_entropy",
        settings=CrossEntropySettings,
        build="forge_sft.losses.cross_entropy:CrossEntropy",
        summary="negative log-likelihood of the response tokens",
    )


@hookimpl
def forge_datasets() -> Iterable[DatasetComponent]:
    yield DatasetComponent(
        name="jsonl",
        settings=JsonlSettings,
        build="forge_sft.datasets.jsonl:Jsonl",
        summary="one JSON object a line: prompt and response, or messages",
    )
