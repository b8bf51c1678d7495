"""Lifecycle hooks act in the runs that use their plugin, or in all where it says so."""

from __future__ import annotations

import importlib

import pytest

from forge_core.app import Forge

HOOKS = """
    from pathlib import Path

    from forge_core import (
        Component,
        Preset,
        RecipeComponent,
        RewardComponent,
        Section,
        Settings,
        TrackerComponent,
        hookimpl,
    )

    {extra}

    class Recipe:
        def plan(self, config, dataset_length):
            return 1

        async def run(self, stage):
            raise NotImplementedError

    def nothing(settings, context):
        return None

    def recipe(settings, context):
        return Recipe()

    def component(name, build=nothing, kind=Component):
        return kind(name=name, settings=Settings, build=build, summary="a test's")

    @hookimpl
    def forge_recipes():
        yield component("{name}-recipe", recipe, RecipeComponent)

    @hookimpl
    def forge_rewards():
        yield component("{name}-reward", kind=RewardComponent)

    @hookimpl
    def forge_trackers():
        yield component("{name}-tracker", kind=TrackerComponent)

    @hookimpl
    def forge_sections():
        yield Section(name="{name}_judge", hook="forge_{name}_judges", summary="a test's")

    @hookimpl
    def forge_{name}_judges():
        yield component("strict")

    @hookimpl
    def forge_presets():
        here = Path(__file__).parent
        yield Preset(name="{name}-preset", path=here / "{name}.yaml", summary="a test's")
        yield Preset(name="{name}-model", path=here / "{name}.yaml", kind="model", summary="x")

    @hookimpl
    def forge_step_finished():
        pass
"""


@pytest.fixture
def app(fake_distribution) -> Forge:
    """Two installed plugins with a hook; the recipe of ``first`` is used in every config below."""
    for name in ("first", "second"):
        file = fake_distribution(
            f"acme-{name}", HOOKS.format(name=name, extra="").replace("-", "_")
        )
        (file.parent / f"{name}.yaml").write_text("training: {seed: 3}\n")
    return Forge()


def acting(app: Forge, config: dict | str, overrides: dict | None = None) -> list[str]:
    resolved = app.resolve(config, overrides or {})
    return [
        plugin
        for plugin, _ in app.plugins.observers("forge_step_finished", resolved)
        if plugin.startswith("acme")
    ]


def test_a_hook_acts_in_runs_that_use_its_plugin(app):
    assert acting(app, {"recipe": {"use": "first_recipe"}}) == ["acme_first"]


@pytest.mark.parametrize(
    "uses",
    [
        {"rewards": {"style": {"use": "second_reward"}}},
        {"trackers": {"second_tracker": {}}},
        {"second_judge": {"use": "strict"}},
        {"model": {"name": "second_model"}},
    ],
    ids=str,
)
def test_any_part_of_a_plugin_counts(app, uses):
    config = {"recipe": {"use": "first_recipe"}, **uses}
    assert acting(app, config) == ["acme_first", "acme_second"]


def test_a_preset_of_a_plugin_counts(app):
    overrides = {"recipe.use": "first_recipe", "training.seed": 4}  # nothing of it is left
    assert acting(app, "second_preset", overrides) == ["acme_first", "acme_second"]


def test_a_plugin_may_act_in_every_run(fake_distribution):
    for name, extra in (("first", ""), ("second", "forge_every_run = True")):
        source = HOOKS.format(name=name, extra=extra).replace("-", "_")
        (fake_distribution(f"acme-{name}", source).parent / f"{name}.yaml").write_text("{}\n")
    assert acting(Forge(), {"recipe": {"use": "first_recipe"}}) == ["acme_first", "acme_second"]


def test_a_plugin_handed_over_in_code_always_acts(app):
    handed = Forge(plugins=[importlib.import_module("acme_second")])  # and it is installed too
    assert acting(handed, {"recipe": {"use": "first_recipe"}}) == ["acme_first", "acme_second"]
