"""The layers of a config as pydantic-settings sources that keep where each value was written.

pydantic-settings asks its sources from the highest to the lowest and shows each what those above it
say. Its merge would lose the places and what was overridden, so each source fills one field of
``Layers``, and ``precedence`` lays the layers over each other.
"""

from __future__ import annotations

import difflib
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from forge_core.config.defaults import component_defaults
from forge_core.config.layers import SECTIONS, Layer, check
from forge_core.config.layout import layout_defaults
from forge_core.config.nested import taken_out
from forge_core.config.precedence import component_name, merged_sections, stage_names
from forge_core.config.references import with_references
from forge_core.config.tree import (
    MOST_LEVELS,
    TOO_DEEP,
    Leaf,
    Node,
    Origin,
    Table,
    from_data,
    merge,
)
from forge_core.config.yaml_source import parse_value, shortened
from forge_core.contracts.errors import ConfigError, PluginError
from forge_core.contracts.families import RecipeComponent
from forge_core.sections import RUN_WIDE

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog

ENVIRONMENT_PREFIX = "FORGE_"
SWITCHES: frozenset[str] = frozenset(
    {"FORGE_DEBUG", "FORGE_DISABLE_PLUGINS", "FORGE_PLUGIN_AUTOLOAD"}
)
"""Variables of the command itself; no config."""

MOST_OVERRIDES = 1_000

_KEY = re.compile(r"[^\s.=~]+(?:[.][^\s.=]+)*")


class Layers(BaseSettings):
    """What every source says. The fields, and the layers in each, are in order, lowest first.

    Args:
        defaults: by stage; None is the top level.
        model_preset: the one that ``model.name`` chooses, over all it extends.
        source: the file, preset or mapping that was asked for, over all it extends.
        environment: variables.
        overrides: arguments, or a mapping handed over in code.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", case_sensitive=True
    )

    defaults: dict[str | None, list[Layer]]
    model_preset: list[Layer]
    source: list[Layer]
    environment: list[Layer]
    overrides: list[Layer]

    def builtin(self, stage: str | None) -> list[Layer]:
        """The layers of a stage that are there on every load."""
        return [*self.defaults[stage], *self.model_preset]

    def of(self, stage: str | None) -> list[Layer]:
        """All layers of a stage."""
        return [*self.builtin(stage), *self.source, *self.environment, *self.overrides]


@dataclass(frozen=True)
class Request:
    """The arguments of ``resolve``."""

    catalog: Catalog
    source: str | Path | Mapping[str, Any] | None
    overrides: Sequence[str] | Mapping[str, Any]
    environ: Mapping[str, str]


class Source(PydanticBaseSettingsSource):
    """A pydantic-settings source of layers, in which every leaf has its ``Origin``."""

    fills: ClassVar[str]
    """The field of ``Layers``."""

    def __init__(self, request: Request) -> None:
        super().__init__(Layers)
        self.request = request
        self.kinds = request.catalog.sections
        self.problems: list[str] = []

    @abstractmethod
    def layers(self) -> Any:
        """What the field holds."""

    def above(self) -> list[Layer]:
        """What all higher sources say, lowest first."""
        return [layer for layers in self.current_state.values() for layer in layers]

    def checked(self, tree: Table, folder: Path | None = None) -> Layer:
        """The layer that a tree is.

        Args:
            tree: what was written.
            folder: that files named behind ``use:`` are relative to; None: the working directory.
        """
        tree = taken_out(tree)
        try:
            tree = with_references(tree, self.request.catalog, folder or Path.cwd())
        except PluginError as error:
            self.problems.append(str(error))
        return check(tree, self.problems, self.kinds)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self.layers(), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {self.fills: self.layers()}


class Defaults(Source):
    """The components a config starts with, and what a stage's layout and recipe default to.

    Raises:
        PluginError: a recipe speaks of sections that are not a stage's.
    """

    fills = "defaults"

    def layers(self) -> dict[str | None, list[Layer]]:
        default = self._layer("default", component_defaults(self.request.catalog))
        layers = [default, *self.above()]
        stages: list[str | None] = [*stage_names(layers, [])] or [None]
        sections = {stage: merged_sections(layers, stage, [], self.kinds) for stage in stages}
        chosen = {stage: [default, *self._chosen(sections[stage])] for stage in stages}
        return {None: [default], **chosen}

    def _chosen(self, sections: Mapping[str, Node]) -> Iterator[Layer]:
        yield self._layer("default", layout_defaults(self.request.catalog, sections))
        recipe = sections.get("recipe")
        if isinstance(recipe, Table):
            try:
                component = self.request.catalog.get("recipe", component_name(recipe) or "")
            except PluginError:
                return  # parsing the recipe's section reports it
            assert isinstance(component, RecipeComponent)
            name = f"recipe {component.name}"
            layer = self._layer(name, component.defaults)
            foreign = {"recipe", *RUN_WIDE} & set(layer.sections)
            if foreign or layer.stages:
                named = ", ".join(sorted(foreign) or ["stages"])
                raise PluginError(f"{name}: defaults cannot set {named}")
            yield layer

    def _layer(self, name: str, data: Mapping[str, Any]) -> Layer:
        tree = from_data(data, Origin(name, name, ""))
        assert isinstance(tree, Table)
        return self.checked(tree)


class Keyed(Source):
    """Values that are given one by one, each under its dotted key."""

    layer: ClassVar[str]

    no_extends: ClassVar[str] = ""
    """Why ``extends`` cannot be given."""

    @abstractmethod
    def values(self) -> Iterator[tuple[Origin, Node | str]]:
        """Where each value was given, and the value; YAML as text."""

    def layers(self) -> list[Layer]:
        items: dict[str, Node] = {}
        for origin, value in self.values():
            words = origin.key.split(".")
            try:
                if len(words) > MOST_LEVELS:
                    raise ConfigError(f"{shortened(origin.where)}: {TOO_DEEP}")
                if words[0] == "extends":
                    raise ConfigError(f"{origin.where}: {self.no_extends}")
                if isinstance(value, str):
                    value = parse_value(value, origin, self.request.environ)
            except ConfigError as error:
                self.problems.extend(error.problems)
                continue
            for depth in range(len(words) - 1, 0, -1):
                value = Table({words[depth]: value}, replace(origin, key=".".join(words[:depth])))
            # Before they are merged: a name alone is short for a section that others may fill.
            for section, node in taken_out(Table({words[0]: value}, origin)).items.items():
                items[section] = merge(items.get(section), node)
        return [self.checked(Table(items, Origin(self.layer, self.layer, "")))]


class Environment(Keyed, EnvSettingsSource):
    """``FORGE_SECTION__KEY=value`` variables.

    A variable without a double underscore is config only if it is called like a section; others
    belong to other programs (several are called Forge), unless they look like a misspelt switch.
    ``EnvSettingsSource`` has the prefix and the delimiter. Its lookup by field is not used: it
    ignores misspelt variables.
    """

    fills = layer = "environment"

    def values(self) -> Iterator[tuple[Origin, str]]:
        for variable in sorted(self.request.environ):
            if not variable.startswith(self.env_prefix) or variable in SWITCHES:
                continue
            words = variable.removeprefix(self.env_prefix).lower().split(self.env_nested_delimiter)
            key = ".".join(words)
            if len(words) == 1 and key not in SECTIONS and key not in self.kinds.added:
                near = difflib.get_close_matches(variable, SWITCHES, n=1, cutoff=0.85)
                if near:
                    self.problems.append(f"{variable}: unknown variable; did you mean {near[0]}?")
            elif not all(words) or words[0] == "extends":
                line = f"{shortened(variable)}: {shortened(key)}: not a key; "
                self.problems.append(line + "write FORGE_SECTION__KEY")
            else:
                yield Origin(self.layer, variable, key), self.request.environ[variable]


class Arguments(Keyed):
    """``key=value`` and ``~key``, in order."""

    fills, layer = "overrides", "command line"
    no_extends = "extends belongs in a file, not on the command line"

    def values(self) -> Iterator[tuple[Origin, str | Leaf]]:
        if len(self.request.overrides) > MOST_OVERRIDES:
            raise ConfigError(f"more than {MOST_OVERRIDES:,} overrides; write them into a file")
        for argument in self.request.overrides:
            removes = argument.startswith("~")
            key, equals, text = argument.removeprefix("~").partition("=")
            origin = Origin(self.layer, shortened(argument), key)
            if removes == bool(equals) or not _KEY.fullmatch(key):
                line = f"{origin.where}: not an override; write key=value, or ~key to remove one"
                self.problems.append(line)
            else:
                yield origin, Leaf(None, argument, origin, unset=True) if removes else text


class Code(Keyed):
    """A mapping handed over in code, nested or with dotted keys."""

    fills = layer = "overrides"
    no_extends = "extends belongs in the source, not in an override"

    def values(self) -> Iterator[tuple[Origin, Node]]:
        assert isinstance(self.request.overrides, Mapping)
        for key, value in self.request.overrides.items():
            origin = Origin(self.layer, f"override {key}", key)
            yield origin, from_data(value, origin)
