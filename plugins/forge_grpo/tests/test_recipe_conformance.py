"""Recipe ``grpo``, and that the suite for recipes catches each way of being wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_core import Episode, Forge, Group, RecipeContext, hookimpl
from forge_grpo.plugin import forge_recipes
from forge_grpo.recipe import GrpoRecipe
from forge_testing.conformance.recipe import RecipeConformance
from forge_testing.context import component
from forge_testing.runs import small_config

CONFIG = small_config(
    rewards={"sevens": {}},
    recipe={"use": "grpo", "group_size": 8},
    training={"steps": 4, "batch_size": 32, "learning_rate": 0.003},
)


def share_of_sevens(sample: Any) -> float:
    return sample.completion.count("7") / 3


class Plugin:
    """Reward ``sevens``, the share of sevens; recipe ``mine``, if one is given."""

    def __init__(self, recipe: type[GrpoRecipe] | None = None) -> None:
        self.recipe = recipe

    @hookimpl
    def forge_rewards(self) -> Any:
        yield component("reward", lambda settings, context: share_of_sevens, name="sevens")

    @hookimpl
    def forge_recipes(self) -> Any:
        if self.recipe is not None:
            (grpo,) = forge_recipes()
            build = lambda settings, context: self.recipe(settings)  # noqa: E731
            yield replace(grpo, name="mine", build=build)


class TestGrpo(RecipeConformance):
    config = CONFIG
    plugins = (Plugin(),)


class Forgets(GrpoRecipe):
    """What it does depends on a count that starts again with the process."""

    done = 0

    def _assign_advantages(self, stage: RecipeContext, groups: Sequence[Group]) -> list[Episode]:
        self.done += 1
        kept = super()._assign_advantages(stage, groups)
        for episode in kept:
            episode.advantage *= self.done
        return kept


class NeverPublishes(GrpoRecipe):
    async def run(self, stage: Any) -> None:
        async def publish() -> int:
            return int(stage.version)

        await super().run(Replaced(stage, publish=publish))


class SaysNothing(GrpoRecipe):
    """Records a metric that is no number."""

    async def run(self, stage: Any) -> None:
        async def steps() -> Any:
            async for step in stage.steps():
                step.record({"quality": float("nan")})
                yield step

        await super().run(Replaced(stage, steps=steps))


class Replaced:
    """Another object, but for some of its attributes."""

    def __init__(self, other: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


@pytest.mark.parametrize(
    ("recipe", "test", "message"),
    [
        (Forgets, "test_a_run_that_goes_on_ends_the_same", r"resumed, step \d differs in .*loss"),
        (NeverPublishes, "test_what_it_trains_is_what_it_samples_from", "it never publishes"),
        (SaysNothing, "test_its_metrics_are_finite_numbers", "quality is None in step 1"),
    ],
)
def test_a_recipe_that_is_wrong_is_caught(
    recipe: type[GrpoRecipe], test: str, message: str, tmp_path: Path
) -> None:
    class Mine(RecipeConformance):
        config = {**CONFIG, "recipe": {"use": "mine", "group_size": 8}}  # noqa: RUF012
        plugins = (Plugin(recipe),)

    suite = Mine()
    app = Forge(plugins=suite.plugins)
    arguments: dict[str, Any] = {"run": app.run(suite._placed(tmp_path / "whole")).folder}
    if recipe is Forgets:
        place = {"tmp_path": tmp_path / "resumed", "planned": 4, "stop": 2}
        arguments |= {"app": app, **place}
    with pytest.raises(AssertionError, match=message):
        getattr(suite, test)(**arguments)
