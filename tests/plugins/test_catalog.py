"""Looking components up: unknown, ambiguous, and held by a plugin that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_core import LossComponent, PluginError, Preset, Settings, hookimpl
from forge_core.plugins.manager import PluginManager


class NoSettings(Settings):
    pass


def build(settings, context):
    return None


class Losses:
    def __init__(self, *names: str) -> None:
        self.names = names

    @hookimpl
    def forge_losses(self):
        for name in self.names:
            yield LossComponent(name=name, settings=NoSettings, build=build, summary="")


class Presets:
    @hookimpl
    def forge_presets(self):
        yield Preset(name="fast", path=Path("fast.yaml"), summary="")
        yield Preset(name="Qwen/Qwen3-0.6B", path=Path("qwen.yaml"), summary="", kind="model")


def error(manager: PluginManager, family: str, name: str) -> str:
    with pytest.raises(PluginError) as caught:
        manager.catalog.get(family, name)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_an_unknown_name_lists_what_is_there_with_a_near_match():
    manager = PluginManager([Losses("grpo", "gspo", "ppo")], discover=False)
    assert error(manager, "loss", "grop") == (
        "no loss is called 'grop'; did you mean 'grpo'?; installed: grpo, gspo, ppo; "
        "installed plugins were not looked for"
    )
    assert "installed: none" in error(manager, "transport", "nccl")


def test_an_unknown_name_lists_plugins_that_failed_to_load(install):
    install("import_error", "wrong_version")
    message = error(PluginManager(), "reward", "acme")
    assert message.startswith("no reward is called 'acme'; installed: ")
    assert "plugin import_error (acme-import-error 1.0) is broken: import of" in message
    assert "plugin wrong_version (acme-wrong-version 3.0) is refused: needs" in message


@pytest.mark.parametrize(
    ("dist", "names", "cause"),
    [
        (
            "import_error",
            ["import_error", "acme_import_error", "acme-import-error:fast"],
            "plugin import_error (acme-import-error 1.0) is broken: import of acme_import_error "
            "failed: ModuleNotFoundError: No module named 'acme_engine_that_is_not_installed'",
        ),
        (
            "wrong_version",
            ["wrong_version"],
            "plugin wrong_version (acme-wrong-version 3.0) is refused: "
            "needs forge-rl-core>=99, this is 0.1.0",
        ),
        (
            "raises_in_hook",
            ["first"],
            "plugin raises_in_hook (acme-raises-in-hook 1.0) is broken: forge_rewards failed: "
            "OSError: the second reward's word list is gone",
        ),
    ],
)
def test_the_plugin_that_probably_holds_the_name_is_said_first(install, dist, names, cause):
    install(dist)
    manager = PluginManager()
    for name in names:
        assert error(manager, "reward", name).startswith(
            f"reward {name!r} cannot be used: {cause}; installed: "
        )


def test_the_last_word_of_a_distribution_names_its_component(fake_distribution):
    fake_distribution(
        "forge-rl-quick", "import no_such_engine", entry_points={"q": "forge_rl_quick"}
    )
    message = error(PluginManager(), "generator", "quick")
    assert message.startswith("generator 'quick' cannot be used: plugin q (forge-rl-quick 1.0)")


def test_a_blocked_plugin_is_named(install):
    install("good")
    message = error(PluginManager(disabled=["good"]), "reward", "good")
    assert "plugin good (acme-good 1.2) is blocked: left out (-p no:good)" in message


def test_a_conflict_names_both_providers_and_how_to_pick_one(install):
    install("conflict")
    catalog = PluginManager().catalog
    line = (
        "reward 'polite' is provided by acme-north 1.0 and acme-south 2.0; "
        "pick one: acme-north:polite or acme-south:polite"
    )
    with pytest.raises(PluginError) as caught:
        catalog.get("reward", "polite")
    assert str(caught.value) == line
    assert line in catalog.conflicts()
    assert catalog.names("reward").count("polite") == 1
    assert [str(e.provider) for e in catalog.entries("reward") if e.name == "polite"] == [
        "acme-north 1.0",
        "acme-south 2.0",
    ]


@pytest.mark.parametrize("picked", ["acme-south:polite", "acme_south:polite", "south:polite"])
def test_a_provider_picks_one(install, picked):
    install("conflict")
    assert PluginManager().catalog.get("reward", picked).summary == "polite in the south"


def test_a_provider_that_does_not_have_it(install):
    install("conflict", "good")
    message = error(PluginManager(), "reward", "acme-good:polite")
    assert message.startswith(
        "no reward is called 'acme-good:polite'; did you mean 'acme-north:polite'?"
    )


def test_two_plugins_of_one_distribution_are_told_apart_by_name(fake_distribution):
    source = """
        from forge_core import LossComponent, Settings, hookimpl

        class S(Settings): ...

        def build(settings, context): ...

        class Plugin:
            @hookimpl
            def forge_losses(self):
                yield LossComponent(name="twin", settings=S, build=build, summary="")

        one, two = Plugin(), Plugin()
    """
    targets = {"one": "acme_twins:one", "two": "acme_twins:two"}
    fake_distribution("acme-twins", source, entry_points=targets)
    catalog = PluginManager().catalog
    with pytest.raises(PluginError, match="pick one: one:twin or two:twin"):
        catalog.get("loss", "twin")
    assert catalog.entry("loss", "two:twin").provider.name == "two"


def test_presets_of_a_kind_are_names_of_their_own():
    catalog = PluginManager([Presets()], discover=False).catalog
    assert [entry.name for entry in catalog.presets()] == ["fast"]
    assert [entry.name for entry in catalog.presets("model")] == ["Qwen/Qwen3-0.6B"]
    assert catalog.preset("Qwen/Qwen3-0.6B", kind="model").path == Path("qwen.yaml")
    with pytest.raises(PluginError, match="no preset is called 'fst'; did you mean 'fast'"):
        catalog.preset("fst")
    with pytest.raises(PluginError, match="no model preset is called 'fast'"):
        catalog.preset("fast", kind="model")


def test_presets_conflict_too():
    class Others(Presets):
        pass

    catalog = PluginManager([Presets(), Others()], discover=False).catalog
    with pytest.raises(PluginError, match="pick one: Presets:fast or Others:fast"):
        catalog.preset("fast")
    assert catalog.preset("Others:fast").name == "fast"
    assert len(catalog.conflicts()) == 2
