"""What a plugin must satisfy before anything of it is used."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pluggy
from pydantic import BaseModel

from forge_core.contracts.component import Component
from forge_core.contracts.contributions import Command, Preset, Section
from forge_core.contracts.families import COMPONENT_TYPES, REACHES, TransportComponent
from forge_core.plugins.secrets import secret_setting
from forge_core.plugins.targets import build_problem
from forge_core.sections import Sections

COMPONENT_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
HOOK_NAME = re.compile(r"forge_[a-z0-9_]+")
COMMAND_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
COMMAND_TARGET = re.compile(r"\w+(\.\w+)*:\w+")
PRESET_NAME = re.compile(r"[^\s:=]+")
PRESET_KINDS = ("run", "model")


class UnfitError(Exception):
    """A plugin breaks a rule; the message is its cause."""


def check_object(plugin: object) -> object:
    """A module or an instance; the methods of a class would have no ``self``.

    Raises:
        UnfitError: it is a class.
    """
    if inspect.isclass(plugin):
        raise UnfitError(f"{plugin.__name__} is a class; give an instance of it or a module")
    return plugin


def check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Every function that looks like a hook is one, is marked, and takes what the hook gives.

    Raises:
        UnfitError: names the function and, where there is one, the hook that was probably meant; or
            an object has no hook at all.
    """
    hooks = {
        name: caller.spec
        for name, caller in vars(manager.hook).items()
        if isinstance(caller, pluggy.HookCaller) and caller.spec is not None
    }
    found = inspect.ismodule(plugin)  # its hooks may come later
    for name in dir(plugin):
        function = getattr(plugin, name)
        if not inspect.isroutine(function):
            continue
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            found |= name.startswith("forge_")
            if name.startswith("forge_") and not hasattr(function, "forge_spec"):
                _check_unmarked(name, hooks)
            continue
        hook = options["specname"] or name
        if hook not in hooks:
            if options["optionalhook"]:
                continue
            raise UnfitError(f"{hook} is not a hook{_did_you_mean(hook, hooks, cutoff=0.6)}")
        if options["wrapper"] or options["hookwrapper"]:
            raise UnfitError(f"{hook} is a hook wrapper; Forge calls each plugin's hooks apart")
        found = True
        known = hooks[hook].argnames
        for parameter in inspect.signature(function).parameters.values():
            if parameter.default is parameter.empty and parameter.name not in known:
                has = ", ".join(known) or "none"
                raise UnfitError(f"{hook} has no argument {parameter.name!r} (it has: {has})")
    if not found:
        raise UnfitError(
            f"{_article(plugin)} has no hook; a plugin is a module or an object with functions "
            "marked @hookimpl, such as forge_rewards (docs/writing-a-plugin.md)"
        )


def _check_unmarked(name: str, hooks: Iterable[str]) -> None:
    if name in hooks:
        raise UnfitError(f"{name} is not marked with @hookimpl")
    # Stricter than for marked functions: a helper may well be called forge_something.
    if meant := _did_you_mean(name, hooks, cutoff=0.85):
        raise UnfitError(f"{name} is not a hook{meant}")


def _did_you_mean(name: str, hooks: Iterable[str], cutoff: float) -> str:
    near = difflib.get_close_matches(name, hooks, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def contributions(hook: str, result: Any) -> Iterable[object]:
    """What a family hook returned, as something to loop over.

    Raises:
        UnfitError: it returned one thing, or nothing.
    """
    if isinstance(result, Iterable):
        return result
    raise UnfitError(f"{hook} returned {_article(result)}; it must yield its contributions")


def check_component(hook: str, item: object, *, family: str, sections: Sections) -> Component[Any]:
    """A component that a config can name and that can be built in another process.

    Args:
        hook: the hook that yielded it.
        item: what was yielded.
        family: that the hook is for.
        sections: what a config may hold.

    Raises:
        UnfitError: names the hook, the component and the rule.
    """
    expected = COMPONENT_TYPES.get(family, Component)
    if not isinstance(item, expected):
        named = f" ({item.name!r})" if isinstance(item, Component) else ""
        raise UnfitError(f"{hook} yielded {_article(item)}{named}, not {_an(expected.__name__)}")
    where = f"{hook}: component {item.name!r}"
    if not isinstance(item.name, str) or not COMPONENT_NAME.fullmatch(item.name):
        raise UnfitError(f"{where}: names are lower case words joined by _")
    if not (inspect.isclass(item.settings) and issubclass(item.settings, BaseModel)):
        raise UnfitError(f"{where}: settings must be a pydantic model class")
    if item.settings.model_config.get("extra") != "forbid":
        raise UnfitError(
            f"{where}: settings {item.settings.__name__} must forbid unknown keys "
            "(derive them from forge_core.Settings)"
        )
    reserved = sorted(item.settings.model_fields.keys() & sections.reserved_keys(family))
    if reserved:
        raise UnfitError(
            f"{where}: setting {reserved[0]!r} has the name of a key that every {family} has in "
            "a config; rename it"
        )
    if isinstance(item, TransportComponent) and item.reach not in REACHES:
        raise UnfitError(f"{where}: reach is {item.reach!r}; it can be: {', '.join(REACHES)}")
    if item.default and family == "reward":
        raise UnfitError(f"{where}: a reward cannot be a default; a preset can have it")
    if secret := secret_setting(item.settings):
        raise UnfitError(
            f"{where}: setting {secret!r} is a secret, and a config is written to the run folder; "
            f"take {secret}_file or {secret}_env, the name of a file or of a variable that holds it"
        )
    if problem := build_problem(item.build):
        raise UnfitError(f"{where}: {problem}")
    return item


def check_section(
    hook: str, item: object, *, sections: Mapping[str, str], hooks: Collection[str]
) -> Section:
    """A section that a config can have beside those that are there.

    Args:
        hook: the hook that yielded it.
        item: what was yielded.
        sections: names of sections and families that are taken -> whose they are.
        hooks: names of hooks that are taken.

    Raises:
        UnfitError: names the section and the rule.
    """
    if not isinstance(item, Section):
        raise UnfitError(f"{hook} yielded {_article(item)}, not a Section")
    where = f"{hook}: section {item.name!r}"
    if not isinstance(item.name, str) or not COMPONENT_NAME.fullmatch(item.name):
        raise UnfitError(f"{where}: names are lower case words joined by _")
    if item.name in sections:
        raise UnfitError(f"{where}: {sections[item.name]} has a section or family of that name")
    if not isinstance(item.hook, str) or not HOOK_NAME.fullmatch(item.hook):
        raise UnfitError(f"{where}: hook is {item.hook!r}; hooks are called forge_...")
    if item.hook in hooks:
        raise UnfitError(f"{where}: there is a hook {item.hook} already")
    return item


def check_preset(hook: str, item: object) -> Preset:
    """A preset that a command line can name. Its file is read only when it is used.

    Raises:
        UnfitError: names the preset and the rule.
    """
    if not isinstance(item, Preset):
        raise UnfitError(f"{hook} yielded {_article(item)}, not a Preset")
    where = f"{hook}: preset {item.name!r}"
    if not isinstance(item.name, str) or not PRESET_NAME.fullmatch(item.name):
        raise UnfitError(f"{where}: names hold no space, ':' or '='")
    if item.kind not in PRESET_KINDS:
        raise UnfitError(f"{where}: kind is {item.kind!r}; it can be: {', '.join(PRESET_KINDS)}")
    return item


def check_command(hook: str, item: object, taken: Collection[str]) -> Command:
    """A command that can be called by its name. Its module is imported only when it is called.

    Args:
        hook: the hook that yielded it.
        item: what was yielded.
        taken: names of the kernel's commands.

    Raises:
        UnfitError: names the command and the rule.
    """
    if not isinstance(item, Command):
        raise UnfitError(f"{hook} yielded {_article(item)}, not a Command")
    where = f"{hook}: command {item.name!r}"
    if not isinstance(item.name, str) or not COMMAND_NAME.fullmatch(item.name):
        raise UnfitError(f"{where}: names are lower case words joined by - or _")
    if item.name in taken:
        raise UnfitError(f"{where}: the kernel has a command of that name")
    if not isinstance(item.target, str) or not COMMAND_TARGET.fullmatch(item.target):
        raise UnfitError(f"{where}: target must be 'module:attribute', not {item.target!r}")
    return item


def _article(item: object) -> str:
    if item is None:
        return "None"
    return _an(type(item).__name__)


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiouAEIOU" else f"a {kind}"
