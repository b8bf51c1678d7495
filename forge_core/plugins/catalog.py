"""Looking components and presets up by name, over all plugins of an app."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from forge_core.contracts.component import Component
from forge_core.contracts.contributions import Command, Preset
from forge_core.contracts.errors import PluginError
from forge_core.contracts.families import REACHES, TransportComponent
from forge_core.plugins.from_code import REFERENCE, component_in_file, component_of
from forge_core.plugins.info import CommandEntry, Entry, PluginInfo, PresetEntry
from forge_core.sections import COMPONENT_MAPS, Sections

GIVEN = "code:"
"""How references to what was handed over in code begin."""


def _apart(name: str) -> PluginInfo:
    """Where a component comes from that no plugin has."""
    return PluginInfo(name=name, distribution="", version="", status="ok")


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> PluginInfo: ...


E_co = TypeVar("E_co", bound=_Named)


class Catalog:
    """Everything that can be selected.

    Args:
        plugins: all of them, also those that cannot be used.
        components: family -> what its plugins contribute.
        presets: what plugins ship.
        commands: subcommands of ``forge``, the kernel's among them.
        sections: what a config may hold.
        discovered: False when installed plugins were not looked for.
    """

    def __init__(
        self,
        plugins: Sequence[PluginInfo],
        components: Mapping[str, Sequence[Entry]],
        presets: Sequence[PresetEntry],
        commands: Sequence[CommandEntry] = (),
        sections: Sections | None = None,
        *,
        discovered: bool = True,
    ) -> None:
        self._plugins = tuple(plugins)
        self._components = {family: tuple(entries) for family, entries in components.items()}
        self._presets = tuple(presets)
        self._commands = tuple(commands)
        self.sections = Sections() if sections is None else sections
        self._discovered = discovered
        self._given: dict[tuple[str, str], Entry] = {}
        """What was handed over in code, by family and reference."""

    @property
    def families(self) -> tuple[str, ...]:
        """All families: the kernel's in the order of ``FAMILY_HOOKS``, then those of plugins."""
        return tuple(self._components)

    def entries(self, family: str) -> list[Entry]:
        """What is there of a family, by name; a name twice where two plugins provide it."""
        return sorted(self._components[family], key=lambda entry: entry.name)

    def names(self, family: str) -> list[str]:
        """Names in a family, each once."""
        return sorted({entry.name for entry in self._components[family]})

    def get(self, family: str, name: str) -> Component[Any]:
        """The component of that name.

        Args:
            family: such as ``loss``.
            name: as written behind ``use:``; ``provider:name`` picks one of several, where the
                provider is a distribution or a plugin.

        Raises:
            PluginError: nothing has that name (names what does, and the plugins that failed to
                load), or several plugins provide it.
        """
        return self.entry(family, name).component

    def entry(self, family: str, name: str) -> Entry:
        """Like ``get``, with the plugin that the component comes from."""
        if REFERENCE.fullmatch(name):
            component = component_in_file(family, name, self.sections.reserved_keys(family))
            file, _, _ = name.rpartition(":")
            return Entry(component, _apart(file))
        if name.startswith(GIVEN):
            if (family, name) in self._given:
                return self._given[family, name]
            raise PluginError(
                f"{family} {name!r} was handed over in code, and cannot be found; hand it over "
                "again (Forge().run(..., rewards=[...]))"
            )
        return self._choose(family, self._components[family], name)

    def hand_over(self, family: str, thing: object) -> str:
        """Make a function, a class or an object selectable.

        Returns:
            what ``use:`` then says.

        Raises:
            PluginError: it cannot be a component of that family, or has no name.
        """
        name = str(getattr(thing, "__name__", "") or getattr(thing, "name", ""))
        if not name.isidentifier():
            name = type(thing).__name__
            if inspect.isroutine(thing):
                raise PluginError(f"a {family} handed over in code needs a name; write it with def")
        component = component_of(family, name, thing, self.sections.reserved_keys(family))
        self._given[family, GIVEN + name] = Entry(component, _apart("code"))
        return GIVEN + name

    def there_is(self, family: str) -> str:
        """Names in a family, and the plugins that failed to load, for messages."""
        unusable = [plugin for plugin in self._plugins if plugin.status in ("broken", "refused")]
        failed = f"; failed to load: {_list_unusable(unusable)}" if unusable else ""
        return f"installed: {', '.join(self.names(family)) or 'none'}{failed}"

    def defaults(self, family: str) -> list[Component[Any]]:
        """What a config selects in a family by itself; of transports, the narrowest reach first.

        Where plugins rival, ``rival_defaults`` says so, and none of theirs is among these.
        """
        return [group[0].component for group in self._claims(family) if len(group) == 1]

    def rival_defaults(self, family: str) -> str:
        """Why a family has no default though plugins bring one: one line; empty where it has."""
        for group in self._claims(family):
            if len(group) > 1:
                claims = " and ".join(f"{each.provider} ({each.name})" for each in group)
                return (
                    f"{claims} are both the default {family}; choose one with "
                    f"{self.sections.home(family)}.use, or "
                    f"leave a plugin out (-p no:{group[-1].provider.name})"
                )
        return ""

    def _claims(self, family: str) -> list[list[Entry]]:
        """Components that say they are the default, those together that cannot all be."""
        claims = [entry for entry in self._components.get(family, ()) if entry.component.default]
        if family in COMPONENT_MAPS.values():
            return [[entry] for entry in claims]
        groups: dict[tuple[int, bool], list[Entry]] = {}
        for entry in claims:
            of, reach = entry.component, (0, False)
            if isinstance(of, TransportComponent):
                reach = (REACHES.index(of.reach), not of.cuda_only)
            groups.setdefault(reach, []).append(entry)
        return [group for _, group in sorted(groups.items())]

    def presets(self, kind: str = "run") -> list[PresetEntry]:
        """Presets of a kind (``run`` or ``model``), by name."""
        chosen = [entry for entry in self._presets if entry.preset.kind == kind]
        return sorted(chosen, key=lambda entry: entry.name)

    def preset(self, name: str, kind: str = "run") -> Preset:
        """The preset of that name; ``provider:name`` picks one of several.

        Raises:
            PluginError: as for ``get``.
        """
        family = "preset" if kind == "run" else f"{kind} preset"
        return self._choose(family, self.presets(kind), name).preset

    def commands(self) -> list[CommandEntry]:
        """Subcommands of ``forge``, in the order of the plugins."""
        return list(self._commands)

    def command(self, name: str) -> Command:
        """The command of that name; ``provider:name`` picks one of several.

        Raises:
            PluginError: as for ``get``.
        """
        return self._choose("command", self._commands, name).command

    def conflicts(self) -> list[str]:
        """One line for each name or default that several plugins provide, and how to pick one."""
        families: list[tuple[str, Sequence[_Named]]] = [
            *self._components.items(),
            ("preset", self.presets()),
            ("model preset", self.presets("model")),
            ("command", self._commands),
        ]
        lines = []
        for family, entries in families:
            for name in sorted({entry.name for entry in entries}):
                same = [entry for entry in entries if entry.name == name]
                if len(same) > 1:
                    lines.append(_ambiguous(family, name, same))
        return [*lines, *filter(None, map(self.rival_defaults, self._components))]

    def _choose(self, family: str, entries: Sequence[E_co], wanted: str) -> E_co:
        provider, _, name = wanted.rpartition(":")
        found = [
            entry
            for entry in entries
            if entry.name == name and (not provider or _provides(entry.provider, provider))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise PluginError(_ambiguous(family, name, found))
        raise PluginError(self._unknown(family, entries, provider, name))

    def _unknown(self, family: str, entries: Sequence[_Named], provider: str, name: str) -> str:
        unusable = [plugin for plugin in self._plugins if plugin.status != "ok"]
        holders = [plugin for plugin in unusable if _may_hold(plugin, family, provider, name)]
        others = [plugin for plugin in unusable if plugin not in holders]
        full = f"{provider}:{name}" if provider else name
        names = sorted({entry.name for entry in entries})
        parts = []
        if holders:
            parts.append(f"{family} {full!r} cannot be used: {_list_unusable(holders)}")
        else:
            parts.append(f"no {family} is called {full!r}")
            qualified = [
                f"{entry.provider.provider}:{name}" for entry in entries if entry.name == name
            ]
            near = qualified or difflib.get_close_matches(name, names, n=1)
            if near:
                parts.append(f"did you mean {near[0]!r}?")
        parts.append(f"installed: {', '.join(names) or 'none'}")
        if others:
            parts.append(f"failed to load: {_list_unusable(others)}")
        if not self._discovered:
            parts.append("installed plugins were not looked for")
        return "; ".join(parts)


def _ambiguous(family: str, name: str, entries: Sequence[_Named]) -> str:
    providers = [entry.provider for entry in entries]
    # Two plugins of one distribution differ only in their own names.
    distributions = {plugin.provider for plugin in providers}
    picks = [
        plugin.provider if len(distributions) == len(providers) else plugin.name
        for plugin in providers
    ]
    return (
        f"{family} {name!r} is provided by {' and '.join(map(str, providers))}; "
        f"pick one: {' or '.join(f'{pick}:{name}' for pick in picks)}"
    )


def _provides(plugin: PluginInfo, provider: str) -> bool:
    return _same(plugin.distribution, provider) or _same(plugin.name, provider)


def _may_hold(plugin: PluginInfo, family: str, provider: str, name: str) -> bool:
    """Whether the component would probably be there, had this plugin been usable."""
    if provider:
        return _provides(plugin, provider)
    short = re.split(r"[-_.]", plugin.distribution)[-1]
    return (family, name) in plugin.components or _provides(plugin, name) or _same(short, name)


def _same(one: str, other: str) -> bool:
    """Equal as distribution names are: case and the kind of separator do not matter."""
    return (
        bool(one) and re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()
    )


def _list_unusable(plugins: Sequence[PluginInfo]) -> str:
    return "; ".join(
        f"plugin {plugin.name} ({plugin}) is {plugin.status}: {plugin.cause}" for plugin in plugins
    )
