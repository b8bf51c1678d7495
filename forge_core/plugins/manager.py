"""The plugins of one app: found, checked, registered, and asked what they contribute.

A plugin that fails on the way is recorded with its cause and left out; nothing it does wrong takes
the command down. Each app has a manager of its own; there is no global one.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy
from packaging.utils import canonicalize_name

from forge_core import builtin
from forge_core.contracts import hookspecs
from forge_core.contracts.blame import contained, described
from forge_core.contracts.component import Component
from forge_core.contracts.contributions import Command, Preset, Section
from forge_core.contracts.errors import PluginError
from forge_core.contracts.hookspecs import FAMILY_HOOKS, PROJECT, hookspec
from forge_core.plugins.catalog import Catalog
from forge_core.plugins.checks import (
    UnfitError,
    check_command,
    check_component,
    check_hooks,
    check_object,
    check_preset,
    check_section,
    contributions,
)
from forge_core.plugins.discovery import KERNEL, installed_plugins
from forge_core.plugins.info import CommandEntry, Entry, PluginInfo, PresetEntry, Status
from forge_core.sections import (
    COMPONENT_MAPS,
    COMPONENT_SECTIONS,
    SHARED_SECTIONS,
    Sections,
)
from forge_core.version import __version__

if TYPE_CHECKING:
    from forge_core.contracts.config import RunConfig

DISABLE = "FORGE_DISABLE_PLUGINS"
AUTOLOAD = "FORGE_PLUGIN_AUTOLOAD"


class PluginManager:
    """Finds, checks and registers plugins; the result is ``catalog``, ``plugins()`` and ``hook``.

    Order is fixed: the kernel's own, installed plugins by distribution and entry point, then those
    handed over. Hooks are called in that order, so that the last word is with the code at hand.

    Args:
        plugins: modules or objects with hooks, handed over in code.
        discover: look for installed plugins; ``FORGE_PLUGIN_AUTOLOAD=0`` turns it off too.
        disabled: plugins or distributions to leave out; ``FORGE_DISABLE_PLUGINS=a,b`` adds to it.
        environ: environment variables; default: this process's.

    Raises:
        PluginError: a plugin handed over in code is broken. (An installed one is only recorded.)
    """

    catalog: Catalog
    """Components and presets by name."""

    def __init__(
        self,
        plugins: Sequence[object] = (),
        *,
        discover: bool = True,
        disabled: Collection[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        discover = _autoload(environ) and discover
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._candidates = [_core(), *(_installed() if discover else ()), *map(_handed, plugins)]
        for candidate in self._candidates:
            candidate.block(disabled, environ)
        self._load()
        self._add_hooks()
        self._sections = self._add_sections()
        self._register()
        self._collect()
        self._infos = [candidate.info() for candidate in self._candidates]
        self.catalog = self._make_catalog(discovered=discover)
        self._raise_for_handed()

    @property
    def hook(self) -> pluggy.HookRelay:
        """Calls a hook of every usable plugin: ``manager.hook.forge_run_started(run=run)``.

        Hooks that plugins added with ``forge_addhooks`` are called in the same way.
        """
        return self._pluggy.hook

    def implementations(self, hook: str) -> list[tuple[str, Callable[..., object]]]:
        """Each plugin's function for a hook, in order, with the plugin's name.

        The functions take the hook's arguments by name and ignore those that they do not ask for.
        """
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        return [
            (implementation.plugin_name.partition(":")[2], _by_name(implementation))
            for implementation in reversed(caller.get_hookimpls())
        ]

    def observers(
        self, hook: str, config: RunConfig, presets: Collection[tuple[str, str]] = ()
    ) -> list[tuple[str, Callable[..., object]]]:
        """Those of ``implementations`` that act in a run: of plugins handed over in code, of those
        whose components, sections or presets the config uses, and of those that say
        ``forge_every_run = True``.

        Args:
            hook: of the lifecycle.
            config: of the run.
            presets: (kind, name) of those that the config came from, beside those that it tells.
        """
        acting = {
            f"{index}:{candidate.name}"
            for index, candidate in enumerate(self._candidates)
            if candidate.acts_in(config, {*presets, *config.presets()})
        }
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        return [
            (implementation.plugin_name.partition(":")[2], _by_name(implementation))
            for implementation in reversed(caller.get_hookimpls())
            if implementation.plugin_name in acting
        ]

    def plugins(self) -> list[PluginInfo]:
        """Every plugin, usable or not, in order."""
        return list(self._infos)

    def _load(self) -> None:
        loaded: dict[int, _Candidate] = {}
        for candidate in self._usable():
            with candidate.recording(f"import of {candidate.target} failed"):
                candidate.plugin = check_object(candidate.load())
            # An installed plugin that is handed over as well is one plugin.
            if candidate.status == "ok" and id(candidate.plugin) in loaded:
                self._candidates.remove(candidate)
                loaded[id(candidate.plugin)].in_code = True
            loaded.setdefault(id(candidate.plugin), candidate)

    def _add_hooks(self) -> None:
        for candidate in self._usable():
            with candidate.recording("forge_addhooks failed"):
                if (add_hooks := getattr(candidate.plugin, "forge_addhooks", None)) is not None:
                    add_hooks(pluginmanager=self._pluggy)

    def _add_sections(self) -> Sections:
        """The sections that plugins add, each with its hook: before others are checked for it."""
        kernel = ("name", "extends", "stages", *SHARED_SECTIONS, *COMPONENT_SECTIONS)
        taken = dict.fromkeys([*kernel, *COMPONENT_MAPS, *FAMILY_HOOKS], "the kernel")
        hooks = {name for name in vars(hookspecs) if name.startswith("forge_")}
        for candidate in self._usable():
            with candidate.recording("forge_sections failed"):
                if self._pluggy.parse_hookimpl_opts(candidate.plugin, "forge_sections") is None:
                    continue
                result = candidate.plugin.forge_sections()  # type: ignore[attr-defined]
                for item in contributions("forge_sections", result):
                    section = check_section("forge_sections", item, sections=taken, hooks=hooks)
                    if getattr(self._pluggy.hook, section.hook, None) is None:
                        self._pluggy.add_hookspecs(_with_hook(section))
                    taken[section.name] = f"plugin {candidate.name}"
                    hooks.add(section.hook)
                    candidate.sections.append(section)
        return self._usable_sections()

    def _usable_sections(self) -> Sections:
        found = [section for candidate in self._usable() for section in candidate.sections]
        return Sections({section.name: section for section in found})

    def _register(self) -> None:
        # pluggy calls what was registered last first.
        for index, candidate in reversed(list(enumerate(self._candidates))):
            if candidate.status == "ok":
                with candidate.recording("registration failed"):
                    check_hooks(self._pluggy, candidate.plugin)
                    self._pluggy.register(candidate.plugin, name=f"{index}:{candidate.name}")

    def _collect(self) -> None:
        for candidate in self._usable():
            added = {section.name: section.hook for section in self._sections.added.values()}
            for family, hook in (FAMILY_HOOKS | added).items():
                with candidate.recording(f"{hook} failed"):
                    for item in self._contributed(candidate, hook):
                        component = check_component(
                            hook,
                            item,
                            family=family,
                            sections=self._sections,
                        )
                        candidate.add_component(family, hook, component)
            with candidate.recording("forge_presets failed"):
                for item in self._contributed(candidate, "forge_presets"):
                    candidate.add_preset(check_preset("forge_presets", item))
            with candidate.recording("forge_commands failed"):
                kernel = self._candidates[0]
                taken = {c.name for c in kernel.commands} if candidate is not kernel else set()
                for item in self._contributed(candidate, "forge_commands"):
                    candidate.add_command(check_command("forge_commands", item, taken))
        for candidate in self._candidates:
            if candidate.status == "broken" and self._pluggy.is_registered(candidate.plugin):
                self._pluggy.unregister(candidate.plugin)

    def _contributed(self, candidate: _Candidate, hook: str) -> Iterator[object]:
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        for implementation in caller.get_hookimpls():
            if implementation.plugin is candidate.plugin:
                yield from contributions(hook, implementation.function())

    def _make_catalog(self, *, discovered: bool) -> Catalog:
        sections = self._usable_sections()
        families = [*FAMILY_HOOKS, *sections.added]
        components: dict[str, list[Entry]] = {family: [] for family in families}
        presets: list[PresetEntry] = []
        commands: list[CommandEntry] = []
        for candidate, info in zip(self._candidates, self._infos, strict=True):
            if info.status == "ok":
                for family, component in candidate.components:
                    if family in components:  # else the plugin that has the family is broken
                        components[family].append(Entry(component, info))
                presets += [PresetEntry(preset, info) for preset in candidate.presets]
                commands += [CommandEntry(command, info) for command in candidate.commands]
        return Catalog(self._infos, components, presets, commands, sections, discovered=discovered)

    def _raise_for_handed(self) -> None:
        for candidate in self._candidates:
            if candidate.handed and candidate.status == "broken":
                message = f"plugin {candidate.name} is broken: {candidate.cause}"
                raise PluginError(message) from candidate.error

    def _usable(self) -> list[_Candidate]:
        return [candidate for candidate in self._candidates if candidate.status == "ok"]


@dataclass(kw_only=True)
class _Candidate:
    """A plugin on its way into the app."""

    name: str
    distribution: str
    version: str
    target: str
    load: Callable[[], object]
    handed: bool = False
    in_code: bool = False
    """It is installed, and handed over in code too."""
    status: Status = "ok"
    cause: str = ""
    error: BaseException | None = None
    plugin: object = None
    components: list[tuple[str, Component[Any]]] = field(default_factory=list)
    presets: list[Preset] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    def block(self, disabled: Collection[str], environ: Mapping[str, str]) -> None:
        """Leave the plugin out if its name or its distribution's is among those disabled."""
        names = {canonicalize_name(name) for name in (self.name, self.distribution) if name}
        from_environ = [name.strip() for name in environ.get(DISABLE, "").split(",")]
        for asked, how in ((disabled, f"-p no:{self.name}"), (from_environ, DISABLE)):
            if names & {canonicalize_name(name) for name in asked}:
                self.status, self.cause = "blocked", f"left out ({how})"

    @contextmanager
    def recording(self, doing: str) -> Iterator[None]:
        """What goes wrong inside breaks this plugin, and nothing else."""
        try:
            # A module that calls sys.exit() when it is imported must not end the command.
            with contained():
                yield
        except Exception as error:
            # The first failure is the cause; what follows from it is not.
            if self.status != "broken":
                self.status, self.error = "broken", error
                self.cause = (
                    str(error) if isinstance(error, UnfitError) else f"{doing}: {described(error)}"
                )

    def add_component(self, family: str, hook: str, component: Component[Any]) -> None:
        if any(f == family and c.name == component.name for f, c in self.components):
            raise UnfitError(f"{hook}: {component.name!r} is there twice")
        self.components.append((family, component))

    def add_preset(self, preset: Preset) -> None:
        if any(p.name == preset.name and p.kind == preset.kind for p in self.presets):
            raise UnfitError(f"forge_presets: {preset.name!r} is there twice")
        self.presets.append(preset)

    def add_command(self, command: Command) -> None:
        if any(c.name == command.name for c in self.commands):
            raise UnfitError(f"forge_commands: {command.name!r} is there twice")
        self.commands.append(command)

    def acts_in(self, config: RunConfig, presets: Collection[tuple[str, str]]) -> bool:
        """Whether the plugin's lifecycle hooks are called in a run."""
        if self.handed or self.in_code or getattr(self.plugin, "forge_every_run", False) is True:
            return True
        provider = self.distribution or self.name
        mine = {(family, component.name) for family, component in self.components}
        return any((preset.kind, preset.name) in presets for preset in self.presets) or any(
            chosen.plugin == provider and (chosen.family, chosen.name) in mine
            for chosen in config.selections()
        )

    def info(self) -> PluginInfo:
        has_trace = self.error is not None and not isinstance(self.error, UnfitError)
        return PluginInfo(
            name=self.name,
            distribution=self.distribution,
            version=self.version,
            status=self.status,
            cause=self.cause,
            trace="".join(traceback.format_exception(self.error)) if has_trace else "",
            components=tuple((family, component.name) for family, component in self.components),
        )


def _by_name(implementation: pluggy.HookImpl) -> Callable[..., object]:
    def call(**arguments: object) -> object:
        return implementation.function(*(arguments[name] for name in implementation.argnames))

    return call


def _with_hook(section: Section) -> type:
    """What pluggy reads the specification of a section's hook from."""

    def hook() -> Any: ...

    return type(section.name, (), {section.hook: staticmethod(hookspec(hook))})


def _core() -> _Candidate:
    return _Candidate(
        name="core",
        distribution=KERNEL,
        version=__version__,
        target=builtin.__name__,
        load=lambda: builtin,
    )


def _installed() -> Iterator[_Candidate]:
    for found in installed_plugins():
        candidate = _Candidate(
            name=found.name,
            distribution=found.distribution,
            version=found.version,
            target=found.target,
            load=found.load,
        )
        if found.misfit:
            candidate.status, candidate.cause = "refused", found.misfit
        elif found.problem:
            candidate.status, candidate.cause = "broken", found.problem
        yield candidate


def _handed(plugin: object) -> _Candidate:
    named = isinstance(plugin, ModuleType | type)
    name = plugin.__name__ if named else type(plugin).__name__  # type: ignore[attr-defined]
    return _Candidate(
        name=name, distribution="", version="", target=name, load=lambda: plugin, handed=True
    )


def _autoload(environ: Mapping[str, str]) -> bool:
    value = environ.get(AUTOLOAD, "1")
    if value not in ("0", "1"):
        raise PluginError(f"{AUTOLOAD} is {value!r}; it can be 0 (off) or 1 (on)")
    return value == "1"
