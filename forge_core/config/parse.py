"""Merged sections parsed into settings: each once, strictly, with the chosen component's class."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_json

from forge_core.config.layers import at
from forge_core.config.precedence import component_name
from forge_core.config.problems import translate
from forge_core.config.tree import Leaf, Node, Origin, Table, leaves, plain
from forge_core.config.yaml_source import shortened
from forge_core.contracts.errors import PluginError
from forge_core.contracts.selection import Selection
from forge_core.contracts.settings import InputPath
from forge_core.sections import COMPONENT_MAPS, NESTED

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog

LARGEST = 2**63 - 1

M = TypeVar("M", bound=BaseModel)


class SectionParser:
    """Parses the sections of one stage, or those of the whole run.

    Args:
        catalog: the installed components.
        merged: section -> what all layers say.
        builtin: section -> what the layers say that are there on every load.
        problems: where lines about what is wrong are added; parsing goes on.
    """

    def __init__(
        self,
        catalog: Catalog,
        merged: Mapping[str, Node],
        builtin: Mapping[str, Node],
        problems: list[str],
    ) -> None:
        self.merged = merged
        self.effective: dict[str, Any] = {}
        """Section -> every value as plain data that would load again; filled while parsing."""
        self._catalog = catalog
        self._builtin = builtin
        self._problems = problems

    def shared(self, section: str, model: type[M]) -> M:
        """A shared section; its defaults after a problem."""
        node = self.merged.get(section)
        table = node if isinstance(node, Table) else Table({}, _nowhere(section))
        inside = self._inside(section)
        parsed = self._parse(model, table, other_keys=NESTED.get(section), inside=inside)
        if parsed is None:
            return model()
        if data := _dump(parsed):
            self.effective[section] = data
        return parsed

    def check_table(self, section: str, path: tuple[str, ...], model: type[BaseModel]) -> None:
        """Check a mapping inside a section that is kept as it is."""
        node = self.merged.get(section)
        for key in path:
            node = node.items.get(key) if isinstance(node, Table) else None
        if isinstance(node, Table):
            self._parse(model, node)

    def component(self, section: str) -> Selection[Any] | None:
        """The chosen component with its settings, if one is."""
        return self.component_and_keys(section)[0]

    def required(self, section: str) -> Selection[Any] | None:
        """A component that there must be; None after a problem."""
        before = len(self._problems)
        selection = self.component(section)
        if selection is None and len(self._problems) == before:
            node = self.merged.get(section)
            if isinstance(node, Table):  # a default that is not installed: say what is
                name = component_name(node) or ""
                try:
                    self._catalog.get(self._family(section), name)
                except PluginError as error:
                    self._problems.append(f"{at(node)}: {error}")
            elif node is not None:
                self._problems.append(f"{at(node)}: cannot be null")
            else:
                self._problems.append(f"{section}: {self._unchosen(section, section)}")
        return selection

    def component_and_keys(self, section: str) -> tuple[Selection[Any] | None, BaseModel | None]:
        """The same, with the kernel's own keys of the section."""
        node = self.merged.get(section)
        if isinstance(node, Table):
            family = self._family(section)
            selection, keys, data = self._selected(section, family, node, None)
            if data is not None:
                self.effective[section] = data
            return selection, keys
        family = self._family(section)
        if node is None and section == self._home(family) and self._catalog.rival_defaults(family):
            self._problems.append(f"{section}: {self._unchosen(section, family)}")
        if isinstance(self._builtin.get(section), Table):
            self.effective[section] = None
        kernel = self._catalog.sections.keys(section)
        return None, kernel() if kernel is not None else None

    def parts(self, section: str) -> dict[str, tuple[Selection[Any], BaseModel | None]]:
        """The components of a section that names several, with the kernel's keys of each part."""
        node = self.merged.get(section)
        builtin = self._builtin.get(section)
        always = builtin.items if isinstance(builtin, Table) else {}
        parsed: dict[str, tuple[Selection[Any], BaseModel | None]] = {}
        effective: dict[str, Any] = {}
        for part, child in node.items.items() if isinstance(node, Table) else ():
            if isinstance(child, Leaf):
                if isinstance(always.get(part), Table):
                    effective[part] = None
                continue
            selection, keys, data = self._selected(section, COMPONENT_MAPS[section], child, part)
            if selection is not None:
                parsed[part] = (selection, keys)
            if data is not None:
                effective[part] = data
        if effective:
            self.effective[section] = effective
        return parsed

    def _family(self, section: str) -> str:
        family = self._catalog.sections.family(section)
        assert family is not None
        return family

    def _inside(self, section: str) -> dict[str, str]:
        """Settings of the components that are chosen inside a section -> where that is."""
        found: dict[str, str] = {}
        for name in NESTED.get(section, ()):
            node = self.merged.get(f"{section}.{name}")
            with suppress(PluginError):
                if isinstance(node, Table) and (chosen := component_name(node)):
                    family = self._family(f"{section}.{name}")
                    settings = self._catalog.get(family, chosen).settings
                    found |= dict.fromkeys(settings.model_fields, name)
        return found

    def _home(self, family: str) -> str:
        return self._catalog.sections.home(family)

    def _unchosen(self, key: str, family: str) -> str:
        """What to do about a section that selects nothing and has no default."""
        if key == self._home(family) and (rivals := self._catalog.rival_defaults(family)):
            return rivals
        return f"no {family} is chosen; add {key}.use ({self._catalog.there_is(family)})"

    def _selected(
        self, section: str, family: str, table: Table, part: str | None
    ) -> tuple[Selection[Any] | None, BaseModel | None, dict[str, Any] | None]:
        """Selection, kernel's keys and effective data of a section or part."""
        kernel = self._catalog.sections.keys(section)
        kernel_fields = kernel.model_fields if kernel is not None else {}
        name = component_name(table, part)
        keys = None
        if kernel is not None:
            keys = self._parse(kernel, _only(table, kernel_fields)) or kernel()
        if name is None:
            self._problems.append(f"{at(table)}: {self._unchosen(table.origin.key, family)}")
            return None, keys, None
        if _by_default(table) and name not in self._catalog.names(family):
            return None, keys, None
        try:
            entry = self._catalog.entry(family, name)
        except PluginError as error:
            self._problems.append(f"{at(table.items.get('use', table))}: {error}")
            return None, keys, None
        component = entry.component
        own = _without(table, {"use", *kernel_fields})
        settings = self._parse(
            component.settings, own, f"{family} {component.name}", {"use", *kernel_fields}
        )
        if settings is None:
            return None, keys, None
        data = {"use": name} if part is None or "use" in table.items else {}
        data |= _dump(keys) if keys is not None else {}
        data |= _dump(settings)
        selection = Selection(
            family=family,
            component=component,
            settings=settings,
            plugin=entry.provider.provider,
        )
        return selection, keys, data

    def _parse(
        self,
        model: type[M],
        table: Table,
        owner: str = "",
        other_keys: Collection[str] | None = None,
        inside: Mapping[str, str] | None = None,
    ) -> M | None:
        if numbers := list(_impossible_numbers(table)):
            self._problems.extend(numbers)
            return None
        try:
            # As JSON, so that "strict" means what it means for text files: a list for a tuple and
            # text for a path are fine, "5" for 5 and "yes" for true are not.
            document = to_json(plain(_located(table, model)), inf_nan_mode="constants")
            return model.model_validate_json(document, strict=True)
        except PydanticSerializationError as error:
            self._problems.append(f"{at(table)}: holds what YAML cannot: {error}")
        except ValidationError as error:
            self._problems.extend(
                translate(
                    error, model, table, owner=owner, other_keys=other_keys or (), inside=inside
                )
            )
        return None


def _is_input_path(field: FieldInfo) -> bool:
    """Whether a setting is an ``InputPath``, or one or null."""
    mark = get_args(InputPath)[1]
    inside = (getattr(each, "__metadata__", ()) for each in get_args(field.annotation))
    return mark in field.metadata or any(mark in metadata for metadata in inside)


def _located(table: Table, model: type[BaseModel]) -> Table:
    """The table with absolute paths where the model has ``InputPath``."""
    items = dict(table.items)
    for name, field in model.model_fields.items():
        node = items.get(name)
        if isinstance(node, Leaf) and isinstance(node.value, str) and _is_input_path(field):
            path = Path(node.folder or "", Path(node.value).expanduser())
            items[name] = replace(node, value=os.path.abspath(path))
    return replace(table, items=items)


def _impossible_numbers(table: Table) -> Iterator[str]:
    """A line for each number that is not finite, or too large for any machine's integers."""
    for leaf in leaves(table):
        for value in _numbers(leaf.value):
            if isinstance(value, float):
                if not math.isfinite(value):
                    yield f"{at(leaf)}: must be finite; not {shortened(leaf.text)!r}"
            elif not -LARGEST <= value <= LARGEST:
                yield f"{at(leaf)}: must be at most 2^63 - 1; not {shortened(leaf.text)!r}"


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(child)


def _by_default(table: Table) -> bool:
    """Whether only the kernel and the recipe set anything here."""
    return all(
        leaf.origin.layer == "default" or leaf.origin.layer.startswith("recipe ")
        for leaf in leaves(table)
    )


def _only(table: Table, keys: Mapping[str, Any]) -> Table:
    return Table({key: node for key, node in table.items.items() if key in keys}, table.origin)


def _without(table: Table, keys: set[str]) -> Table:
    return Table({key: node for key, node in table.items.items() if key not in keys}, table.origin)


def _dump(settings: BaseModel) -> dict[str, Any]:
    return settings.model_dump(mode="json", by_alias=True)


def _nowhere(section: str) -> Origin:
    return Origin("default", "default", section)
