"""Finding, checking and registering plugins."""

from __future__ import annotations

import pickle
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, create_model

from forge_core import Component, LossComponent, PluginError, Preset, Settings, hookimpl, hookspec
from forge_core.contracts.target import call_build
from forge_core.plugins.manager import PluginManager
from forge_local.processes.frames import dumps
from forge_testing.context import component as typed


class NoSettings(Settings):
    pass


def build(settings: NoSettings, context: object) -> str:
    return "built"


FIELDS: Any = {"name": "mine", "settings": NoSettings, "build": build, "summary": "mine"}


def component(**changes: object) -> LossComponent:
    return LossComponent(**{**FIELDS, **changes})


class Plugin:
    """Yields what it is given from ``forge_losses``."""

    def __init__(self, *items: object) -> None:
        self.items = items

    @hookimpl
    def forge_losses(self):
        yield from self.items


# What is installed


def test_a_good_plugin_is_found_with_version_and_components(install, find):
    install("good")
    manager = PluginManager()
    info = find(manager, "good")
    assert (info.distribution, info.version, info.status) == ("acme-good", "1.2", "ok")
    assert info.components == (("reward", "short"),)
    assert manager.catalog.get("reward", "short").summary == "1 if short"


def test_the_kernel_comes_through_the_same_hooks(find):
    manager = PluginManager(discover=False)
    core = find(manager, "core")
    assert core.status == "ok", core.cause
    brought = [entry.name for entry in manager.catalog.commands() if entry.provider == core]
    assert "plugins" in brought


def test_the_plugins_of_this_repository_are_healthy():
    for info in PluginManager().plugins():
        assert info.status == "ok", f"{info}: {info.cause}"


def test_an_import_error_is_recorded_with_its_cause(install, find):
    install("import_error", "good")
    manager = PluginManager()
    info = find(manager, "import_error")
    assert info.status == "broken"
    assert info.cause == (
        "import of acme_import_error failed: "
        "ModuleNotFoundError: No module named 'acme_engine_that_is_not_installed'"
    )
    assert "acme_import_error.py" in info.trace
    assert find(manager, "good").status == "ok"


def test_another_kernel_version_is_refused_before_import(install, find):
    install("wrong_version")
    info = find(PluginManager(), "wrong_version")
    assert info.status == "refused"
    assert info.cause == "needs forge-rl-core>=99, this is 0.1.0"
    assert "acme_wrong_version" not in sys.modules


def test_a_misspelt_hook_breaks_the_plugin_and_names_the_near_one(install, find):
    install("misspelt_hook")
    info = find(PluginManager(), "misspelt_hook")
    assert info.status == "broken"
    assert info.cause == "forge_generator is not a hook; did you mean forge_generators?"


def test_an_exception_in_the_body_of_a_hook_breaks_the_whole_plugin(install, find):
    install("raises_in_hook")
    manager = PluginManager()
    info = find(manager, "raises_in_hook")
    assert info.status == "broken"
    assert info.cause == "forge_rewards failed: OSError: the second reward's word list is gone"
    assert info.components == (("reward", "first"),)
    assert "first" not in manager.catalog.names("reward")


def test_a_module_that_exits_does_not_end_the_command(fake_distribution, find):
    fake_distribution("acme-exits", "import sys\nsys.exit('goodbye')")
    info = find(PluginManager(), "acme_exits")
    assert info.cause == "import of acme_exits failed: SystemExit: goodbye"


def test_several_entry_points_stand_and_fall_apart(fake_distribution, find):
    file = fake_distribution(
        "acme-two", "", entry_points={"zz": "acme_two", "aa": "acme_two:nothing_here"}
    )
    assert file.is_file()
    manager = PluginManager()
    assert find(manager, "zz").status == "ok"
    assert find(manager, "aa").cause.startswith("import of acme_two:nothing_here failed")


def test_a_distribution_twice_on_the_path_counts_once_and_the_first_wins(
    fake_distribution, tmp_path, monkeypatch, find
):
    shadowing = tmp_path / "shadowing"
    shadowing.mkdir()
    fake_distribution("acme-twice", "", version="1.0")
    fake_distribution.folder = shadowing
    fake_distribution("Acme.Twice", "", version="2.0", entry_points={"acme_twice": "Acme_Twice"})
    monkeypatch.syspath_prepend(shadowing)
    monkeypatch.syspath_prepend(shadowing)
    assert find(PluginManager(), "acme_twice").version == "2.0"


def test_unreadable_metadata_costs_only_that_distribution(fake_distribution, install, find):
    install("good")
    file = fake_distribution("acme-nameless", "")
    (file.parent / "acme_nameless-1.0.dist-info" / "METADATA").unlink()
    manager = PluginManager()
    assert "unreadable metadata" in find(manager, "acme_nameless").cause
    assert find(manager, "good").status == "ok"


@pytest.mark.parametrize(
    ("requires", "status"),
    [
        (["forge-rl-core[later]>=0.1,<0.2", "torch"], "ok"),
        (["Forge_RL.Core==0.1.*"], "ok"),
        (["forge-rl-core>=99; extra == 'later'"], "ok"),
        (["forge-rl-core>=99; python_version < '3'"], "ok"),
        (["torch", "forge-rl-core<0.1"], "refused"),
        (["forge-rl-core >= not a version"], "broken"),
    ],
)
def test_the_requirement_on_the_kernel(fake_distribution, find, requires, status):
    fake_distribution("acme-needs", "", requires=requires)
    assert find(PluginManager(), "acme_needs").status == status


def test_installed_plugins_come_in_the_order_of_their_distributions(fake_distribution):
    for name in ("acme-c", "acme-a", "acme-b"):
        fake_distribution(name, "")
    names = [info.name for info in PluginManager().plugins()]
    assert names[0] == "core"
    expected = ["acme_a", "acme_b", "acme_c"]  # the packages of examples/ may be installed too
    assert [name for name in names if name in expected] == expected


# Leaving plugins out


@pytest.mark.parametrize("name", ["good", "acme-good", "Acme_Good"])
def test_blocked_plugins_are_not_imported(install, find, name):
    install("good")
    info = find(PluginManager(disabled=[name]), "good")
    assert (info.status, info.cause) == ("blocked", "left out (-p no:good)")
    assert "acme_good" not in sys.modules


def test_plugins_blocked_by_the_environment(install, find):
    install("good", "import_error")
    environ = {"FORGE_DISABLE_PLUGINS": "good, import_error"}
    manager = PluginManager(environ=environ)
    assert find(manager, "good").cause == "left out (FORGE_DISABLE_PLUGINS)"
    assert find(manager, "import_error").status == "blocked"


def test_autoload_can_be_turned_off(install):
    install("good")
    manager = PluginManager([Plugin(component())], environ={"FORGE_PLUGIN_AUTOLOAD": "0"})
    assert [info.name for info in manager.plugins()] == ["core", "Plugin"]
    with pytest.raises(PluginError, match="it can be 0"):
        PluginManager(environ={"FORGE_PLUGIN_AUTOLOAD": "no"})


# What is handed over in code


def test_an_object_handed_over_may_build_with_anything_callable():
    class WithMethod:
        def build(self, settings, context):
            return self

        @hookimpl
        def forge_losses(self):
            yield component(build=self.build)
            yield component(name="also", build=lambda settings, context: None)

    plugin = WithMethod()
    catalog = PluginManager([plugin], discover=False).catalog
    assert catalog.get("loss", "mine").build(None, None) is plugin
    assert catalog.names("loss") == ["also", "mine"]


def test_two_managers_share_nothing():
    first = PluginManager([Plugin(component())], discover=False)
    second = PluginManager(discover=False)
    assert first.catalog.names("loss") == ["mine"]
    assert second.catalog.names("loss") == []


def test_an_installed_module_handed_over_as_well_is_one_plugin(install):
    install("good")
    import acme_good

    manager = PluginManager([acme_good, acme_good])
    assert [info.name for info in manager.plugins()].count("good") == 1
    assert "acme_good" not in [info.name for info in manager.plugins()]
    assert manager.catalog.get("reward", "short")


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        (3, "forge_losses yielded an int, not a LossComponent"),
        (component(name="Mine"), "names are lower case words"),
        (component(name="a:b"), "names are lower case words"),
        (component(name="two__marks"), "names are lower case words"),
        (component(settings=dict), "settings must be a pydantic model class"),
        (component(settings=BaseModel), "settings BaseModel must forbid unknown keys"),
        (component(build=None), "build must be 'module:attribute' or a function"),
        (component(build="forge_core"), "build is 'forge_core'; write 'module:attribute'"),
        (component(build="forge_core.app:Forgs"), "and forge_core.app has no Forgs"),
        (component(build="forge_core.nowhere:A"), "and there is no module forge_core.nowhere"),
        (
            component(build=lambda settings, context, more: None),
            "build must take (settings, context)",
        ),
        (Preset(name="x", path=Path("x"), summary=""), "yielded a Preset, not a LossComponent"),
        (typed("reward", build), "forge_losses yielded a RewardComponent ('mine'), not a LossComp"),
        (Component(**FIELDS), "forge_losses yielded a Component ('mine'), not a LossComponent"),
    ],
)
def test_a_bad_component_breaks_its_plugin(item, cause):
    with pytest.raises(PluginError, match="plugin Plugin is broken: ") as caught:
        PluginManager([Plugin(item)], discover=False)
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hook", "family", "key"),
    [
        ("forge_losses", "loss", "use"),
        ("forge_environments", "environment", "deadline"),
        ("forge_datasets", "dataset", "retries"),
        ("forge_rewards", "reward", "failure_reward"),
        ("forge_trainers", "trainer", "procs"),
    ],
)
def test_a_setting_called_like_a_key_of_the_kernel_breaks_its_plugin(hook, family, key):
    """It would never reach the component."""
    settings = create_model("Taken", __base__=Settings, **{key: (int, 1)})
    plugin = SimpleNamespace(__name__="acme")
    mine = typed(hook, build, settings=settings)
    setattr(plugin, hook, hookimpl(lambda: [mine]))
    with pytest.raises(PluginError) as caught:
        PluginManager([plugin], discover=False)
    assert str(caught.value).endswith(
        f"{hook}: component 'mine': setting {key!r} has the name of a key that every {family} has "
        "in a config; rename it"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("api_key", str), ("wandb_api_key", str | None), ("password", str), ("login", SecretStr)],
)
def test_a_setting_that_is_a_secret_breaks_its_plugin(name, kind):
    settings = create_model("Secret", __base__=Settings, **{name: (kind, "hunter2")})
    with pytest.raises(PluginError) as caught:
        PluginManager([Plugin(component(settings=settings))], discover=False)
    assert f"setting {name!r} is a secret" in str(caught.value)
    assert f"take {name}_file or {name}_env" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["api_key_file", "api_key_env", "pad_token", "key", "answer_key"])
def test_a_setting_that_only_sounds_like_a_secret_is_none(name):
    settings = create_model("Fine", __base__=Settings, **{name: (str, "x")})
    manager = PluginManager([Plugin(component(settings=settings))], discover=False)
    assert manager.catalog.names("loss") == ["mine"]


def test_a_name_twice_in_one_plugin_breaks_it():
    with pytest.raises(PluginError, match="'mine' is there twice"):
        PluginManager([Plugin(component(), component())], discover=False)


@pytest.mark.parametrize("returned", [None, component(), 7])
def test_a_hook_that_does_not_yield_breaks_its_plugin(returned):
    class Returns:
        @hookimpl
        def forge_losses(self):
            return returned

    with pytest.raises(PluginError, match="it must yield its contributions"):
        PluginManager([Returns()], discover=False)


@pytest.mark.parametrize(
    "builder",
    [
        "build = lambda settings, context: None",
        "from functools import partial\nbuild = partial(print)",
        "def outer():\n    def build(settings, context): ...\n    return build\nbuild = outer()",
        "class Builder:\n    def build(self, settings, context): ...\nbuild = Builder().build",
    ],
)
def test_an_installed_plugin_builds_with_what_one_handed_over_may(fake_distribution, find, builder):
    source = (
        "from forge_core import LossComponent, Settings, hookimpl\n"
        f"{builder}\n"
        "class S(Settings): ...\n"
        "@hookimpl\n"
        "def forge_losses():\n"
        "    yield LossComponent(name='mine', settings=S, build=build, summary='')\n"
    )
    fake_distribution("acme-build", source)
    manager = PluginManager()
    info = find(manager, "acme_build")
    assert info.status == "ok", info.cause
    component = manager.catalog.get("loss", "mine")
    travelled = pickle.loads(dumps(component))  # as to a process of its own
    assert call_build(travelled.build, travelled.settings(), None) is None


def test_a_preset_needs_a_name_and_a_known_kind():
    def plugin(**changes: object) -> SimpleNamespace:
        fields = {"name": "mine", "path": Path("mine.yaml"), "summary": "", **changes}
        return SimpleNamespace(forge_presets=hookimpl(lambda: iter([Preset(**fields)])))

    assert PluginManager([plugin()], discover=False).catalog.preset("mine").name == "mine"
    with pytest.raises(PluginError, match="names hold no space"):
        PluginManager([plugin(name="my own")], discover=False)
    with pytest.raises(PluginError, match="kind is 'modle'; it can be: run, model"):
        PluginManager([plugin(kind="modle")], discover=False)


def test_a_class_instead_of_an_instance_is_named():
    with pytest.raises(PluginError, match="Plugin is a class; give an instance"):
        PluginManager([Plugin], discover=False)


# Hooks


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("forge_loss", "forge_loss is not a hook; did you mean forge_losses?"),
        ("forge_step_finish", "did you mean forge_step_finished?"),
        ("forge_rewards", "forge_rewards is not marked with @hookimpl"),
    ],
)
def test_an_unmarked_function_that_looks_like_a_hook(name, cause):
    with pytest.raises(PluginError, match=cause):
        PluginManager([SimpleNamespace(**{name: build})], discover=False)


def test_a_helper_may_begin_with_forge():
    module = ModuleType("helpers")
    module.forge_answer = partial(build)
    module.forge_the_answer_of_everything = build
    PluginManager([module], discover=False)


def test_a_marked_function_that_is_no_hook():
    module = ModuleType("odd")
    module.forge_nonsense_at_all = hookimpl(lambda: None)
    with pytest.raises(PluginError, match="forge_nonsense_at_all is not a hook"):
        PluginManager([module], discover=False)


def test_an_argument_that_the_hook_does_not_give():
    class Watches:
        @hookimpl
        def forge_step_finished(self, step):
            raise AssertionError

    with pytest.raises(
        PluginError, match=r"forge_step_finished has no argument 'step' \(it has: record\)"
    ):
        PluginManager([Watches()], discover=False)


def test_lifecycle_hooks_reach_plugins_in_order_and_may_take_fewer_arguments():
    heard = []

    class First:
        @hookimpl
        def forge_checkpoint_saved(self, folder, step):
            heard.append(("first", folder, step))

    class Second:
        @hookimpl
        def forge_checkpoint_saved(self, step):
            heard.append(("second", step))

    manager = PluginManager([First(), Second()], discover=False)
    manager.hook.forge_checkpoint_saved(folder=Path("x"), step=3)
    assert heard == [("first", Path("x"), 3), ("second", 3)]


def test_a_broken_plugin_hears_of_nothing(fake_distribution):
    fake_distribution(
        "acme-deaf",
        """
        from forge_core import hookimpl

        @hookimpl
        def forge_run_finished(summary):
            raise AssertionError("called")

        @hookimpl
        def forge_losses():
            yield 3
        """,
    )
    PluginManager().hook.forge_run_finished(summary=None)


def test_a_plugin_may_add_a_family():
    specs = ModuleType("specs")
    specs.forge_judges = hookspec(lambda: None)

    class Adds:
        @hookimpl
        def forge_addhooks(self, pluginmanager):
            pluginmanager.add_hookspecs(specs)

    class Judges:
        @hookimpl
        def forge_judges(self):
            return ["strict"]

    # Also for a plugin that comes before the one that adds the hook.
    manager = PluginManager([Judges(), Adds()], discover=False)
    assert manager.hook.forge_judges() == [["strict"]]
    with pytest.raises(PluginError, match="forge_judges is not a hook"):
        PluginManager([Judges()], discover=False)


def test_an_exception_in_addhooks_breaks_the_plugin():
    class Adds:
        @hookimpl
        def forge_addhooks(self, pluginmanager):
            pluginmanager.no_such_method()

    with pytest.raises(PluginError, match="forge_addhooks failed: AttributeError"):
        PluginManager([Adds()], discover=False)


@pytest.mark.parametrize("plugin", [lambda sample: 1.0, object(), {"rewards": 1}])
def test_an_object_without_hooks_is_no_plugin(plugin):
    with pytest.raises(PluginError, match=r"is broken: an? \w+ has no hook; a plugin is a module"):
        PluginManager([plugin], discover=False)
