"""Components that a config starts with come from the plugins that bring them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forge_local.plugin
from forge_core import (
    Component,
    ConfigError,
    Forge,
    PluginError,
    RecipeComponent,
    RewardComponent,
    RuntimeComponent,
    Section,
    TrackerComponent,
    TrainerComponent,
    TransportComponent,
    hookimpl,
)
from forge_core.config.resolve import resolve
from forge_testing.context import component


def build(settings: object, context: object) -> object:
    return settings


def one(family: str, name: str, **says: Any) -> Any:
    return component(family, build, name=name, **says)


class Base:
    """A recipe, a trainer and a runtime, all the default."""

    @hookimpl
    def forge_runtimes(self) -> Iterator[RuntimeComponent]:
        yield one("runtime", "here", default=True, in_process=True)

    @hookimpl
    def forge_recipes(self) -> Iterator[RecipeComponent]:
        yield one("recipe", "imitate", default=True)

    @hookimpl
    def forge_trainers(self) -> Iterator[TrainerComponent]:
        yield one("trainer", "plain", default=True)
        yield one("trainer", "other")


class Rival:
    """A second default."""

    @hookimpl
    def forge_trainers(self) -> Iterator[TrainerComponent]:
        yield one("trainer", "mine", default=True)


def test_a_default_is_selected_where_nothing_else_is() -> None:
    app = Forge([Base()], discover=False)
    [stage] = app.resolve().stages
    assert stage.trainer is not None
    assert (stage.recipe.name, stage.trainer.name) == ("imitate", "plain")
    assert app.resolve().provenance["trainer.use"].layer == "default"
    [stage] = app.resolve({"trainer": {"use": "other"}}).stages
    assert stage.trainer is not None
    assert stage.trainer.name == "other"
    assert app.resolve({"trainer": None}).stages[0].trainer is None


def test_two_defaults_have_to_be_chosen_from(run_forge: Callable[..., Any]) -> None:
    app = Forge([Base(), Rival()], discover=False)
    both = (
        "Base (plain) and Rival (mine) are both the default trainer; choose one with trainer.use, "
        "or leave a plugin out (-p no:Rival)"
    )
    with pytest.raises(ConfigError) as caught:
        app.resolve()
    assert caught.value.problems == (f"trainer: {both}",)
    with pytest.raises(ConfigError) as caught:
        app.resolve({"trainer": {"procs": 2}})
    assert caught.value.problems == (f"mapping: trainer: {both}",)
    for name in ("mine", "plain"):
        assert app.resolve({"trainer": {"use": name}}).stages[0].trainer is not None
    assert app.resolve({"trainer": None}).stages[0].trainer is None
    assert f"conflict: {both}" in run_forge("plugins", app=app).stdout
    assert Forge([Base(), Rival()], discover=False, disabled=["Rival"]).resolve()


def test_without_a_default_recipe_one_has_to_be_chosen() -> None:
    catalog = Forge([forge_local.plugin], discover=False).plugins.catalog
    with pytest.raises(ConfigError) as caught:
        resolve(catalog, None, environ={})
    assert caught.value.problems == (
        "recipe: no recipe is chosen; add recipe.use (installed: none)",
    )


def test_a_plugin_that_failed_to_load_is_named(fake_distribution: Callable[..., Any]) -> None:
    fake_distribution("acme-broken", "1 / 0")
    catalog = Forge(disabled=["sft"]).plugins.catalog
    with pytest.raises(ConfigError, match=r"recipe.use .*acme-broken 1.0\) is broken: "):
        resolve(catalog, None, environ={})


def test_trackers_do_not_rival() -> None:
    class Mine:
        def __init__(self, name: str) -> None:
            self.tracker = name

        @hookimpl
        def forge_trackers(self) -> Iterator[TrackerComponent]:
            yield one("tracker", self.tracker, default=True)

    app = Forge([Base(), Mine("wall"), Mine("paper")], discover=False)
    assert set(app.resolve().trackers) == {"wall", "paper"}


def test_transports_rival_where_they_reach_as_far() -> None:
    class Carriers:
        @hookimpl
        def forge_transports(self) -> Iterator[TransportComponent]:
            yield one("transport", "far", default=True)
            yield one("transport", "near", default=True, reach="process")

    class Wide:
        @hookimpl
        def forge_transports(self) -> Iterator[TransportComponent]:
            yield one("transport", "wide", default=True)

    def chosen(*plugins: object, **sections: Any) -> str | None:
        [stage] = Forge([Base(), *plugins], discover=False).resolve(sections).stages
        return stage.transport.name if stage.transport is not None else None

    apart = {"trainer": {"isolate": True}}
    assert chosen(Carriers()) == "near"
    assert chosen(Carriers(), **apart) == "far"
    assert chosen(Carriers(), Wide()) == "near"
    with pytest.raises(ConfigError, match=r"\(far\) and Wide \(wide\) are both the default trans"):
        chosen(Carriers(), Wide(), **apart)


def test_a_family_of_a_plugins_own_has_a_default() -> None:
    class Judges:
        @hookimpl
        def forge_sections(self) -> Iterator[Section]:
            yield Section(name="judge", hook="forge_judges", summary="")

        @hookimpl
        def forge_judges(self) -> Iterator[Component[Any]]:
            yield one("judge", "strict", default=True)

    [stage] = Forge([Base(), Judges()], discover=False).resolve().stages
    selection = stage.sections["judge"].selection
    assert selection is not None
    assert selection.name == "strict"


def test_a_reward_is_no_default() -> None:
    class Mine:
        @hookimpl
        def forge_rewards(self) -> Iterator[RewardComponent]:
            yield one("reward", "nice", default=True)

    with pytest.raises(PluginError, match="component 'nice': a reward cannot be a default"):
        Forge([Mine()], discover=False).plugins  # noqa: B018
