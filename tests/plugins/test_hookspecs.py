"""The hooks are documented, and the examples in their docstrings work."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from forge_core import (
    ConfigError,
    Episode,
    RunFailed,
    RunInfo,
    StepRecord,
    Summary,
    Task,
    UsageError,
)
from forge_core.contracts import hookspecs, protocols
from forge_core.contracts.hookspecs import FAMILY_HOOKS
from forge_core.contracts.target import call_build
from forge_core.plugins.info import PluginInfo
from forge_core.plugins.manager import PluginManager

HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if name.startswith("forge_") and hasattr(function, "forge_spec")
}
DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"
EXAMPLE = re.compile(r"\.\. code-block:: python\n\n((?: {4,}.*\n|\n)+)")


def example(hook: str) -> str:
    found = EXAMPLE.search(inspect.cleandoc(HOOKS[hook].__doc__ or "") + "\n")
    assert found, f"{hook} has no example"
    return dedent(found.group(1))


@pytest.fixture
def use_example(fake_distribution, find) -> Callable[[str], tuple[PluginManager, PluginInfo]]:
    """Install the example of a hook's docstring as a plugin."""

    def use(hook: str) -> tuple[PluginManager, PluginInfo]:
        fake_distribution("acme-example", example(hook))
        manager = PluginManager()
        return manager, find(manager, "acme_example")

    return use


def test_every_family_has_a_hook():
    assert set(FAMILY_HOOKS.values()) <= set(HOOKS)
    assert len(HOOKS) == len(FAMILY_HOOKS) + 13


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_and_argument_is_documented(hook):
    docstring = inspect.getdoc(HOOKS[hook]) or ""
    assert re.search(r"\b[Cc]alled\b|before anything starts", docstring), "it does not say when"
    arguments = list(inspect.signature(HOOKS[hook]).parameters)
    for argument in arguments:
        assert re.search(rf"^    {argument}: \S", docstring, re.MULTILINE), argument
    assert f"`{hook}({', '.join(arguments)})`" in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize(("family", "hook"), FAMILY_HOOKS.items())
def test_the_example_of_a_family_contributes_what_its_protocol_asks_for(family, hook, use_example):
    manager, info = use_example(hook)
    assert info.status == "ok", info.cause
    [(contributed, name)] = info.components
    assert contributed == family
    component = manager.catalog.get(family, f"acme-example:{name}")
    settings = component.settings()
    if family == "trainer":  # imports a package that the example makes up
        with pytest.raises(ModuleNotFoundError, match="my_package"):
            call_build(component.build, settings, None)
        return
    built = call_build(component.build, settings, None)
    if built is not ...:
        name = {"optimizer": "OptimizerFactory", "advantage": "AdvantageEstimator"}.get(family)
        assert isinstance(built, getattr(protocols, name or family.capitalize()))


def test_the_example_of_presets(use_example):
    manager, info = use_example("forge_presets")
    assert info.status == "ok", info.cause
    path = manager.catalog.preset("mine").path
    assert path == Path(sys.modules["acme_example"].__file__).parent / "presets" / "mine.yaml"


def test_the_example_of_models(use_example, tmp_path):
    manager, info = use_example("forge_models")
    assert info.status == "ok", info.cause
    makers = [maker for made in manager.hook.forge_models() for maker in made]
    [maker] = [maker for maker in makers if maker.name == "mine"]  # installed plugins ship others
    maker.make(tmp_path)
    assert (tmp_path / "config.json").is_file()


def test_the_example_of_commands(use_example, run_forge):
    _, info = use_example("forge_commands")
    assert info.status == "ok", info.cause
    assert run_forge("greet", "you").stdout == "hello you\n"


def test_the_example_of_health_checks(use_example):
    manager, info = use_example("forge_health_checks")
    assert info.status == "ok", info.cause
    found = [finding for rows in manager.hook.forge_health_checks() for finding in rows]
    assert "podman" in [finding.subject for finding in found]


def test_the_example_of_sections(use_example):
    manager, info = use_example("forge_sections")
    assert info.status == "ok", info.cause
    component = manager.catalog.get("judge", "length")
    assert call_build(component.build, component.settings(), None)("short")


EPISODE = Episode(Task("t", "1+1="), turns=[], reward=7.0)
RECORD = StepRecord(
    step=4, stage="s", stage_step=4, stage_steps=9, metrics={"loss": 1e9}, timing={}
)
SUMMARY = Summary(
    outcome="finished", exit_code=0, message="", folder=Path("runs/x"), steps=4, seconds=1.0
)
CALLS: dict[str, tuple[dict[str, Any], type[Exception] | None, str]] = {
    # hook -> its arguments, what the example raises, what it prints
    "forge_config_resolved": ({"config": SimpleNamespace(name="forbidden")}, ConfigError, ""),
    "forge_run_started": (
        {"run": RunInfo(name="x", folder=Path("runs/x"), stages=())},
        None,
        "runs/x\n",
    ),
    "forge_episode_finished": ({"episode": EPISODE, "held_out": False}, None, ""),
    "forge_step_finished": ({"record": RECORD}, RunFailed, ""),
    "forge_checkpoint_saved": ({"folder": Path("step_4"), "step": 4}, None, "4 step_4\n"),
    "forge_run_finished": ({"summary": SUMMARY}, None, "finished\n"),
}


@pytest.mark.parametrize("hook", CALLS)
def test_the_example_of_a_lifecycle_hook(hook, use_example, capsys):
    arguments, raises, prints = CALLS[hook]
    manager, info = use_example(hook)
    assert info.status == "ok", info.cause
    if raises:
        with pytest.raises(raises):
            getattr(manager.hook, hook)(**arguments)
    else:
        getattr(manager.hook, hook)(**arguments)
    assert capsys.readouterr().out == prints
    if hook == "forge_episode_finished":
        assert arguments["episode"].reward == 1.0


def test_the_example_of_addhooks(use_example):
    manager, info = use_example("forge_addhooks")
    assert info.status == "ok", info.cause
    assert manager.hook.forge_judges() == []


def test_the_example_of_a_runner(use_example):
    manager, info = use_example("forge_runner")
    assert info.status == "ok", info.cause
    runner = manager.hook.forge_runner(app=None)[0]
    with pytest.raises(UsageError, match="this installation runs nothing"):
        runner.prepare("quickstart", {})


def test_every_hook_has_its_example_run():
    others = {"forge_presets", "forge_models", "forge_commands", "forge_addhooks"}
    others |= {"forge_health_checks", "forge_sections", "forge_runner"}
    assert set(HOOKS) == {*FAMILY_HOOKS.values(), *CALLS, *others}
