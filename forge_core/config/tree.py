"""The merged config before it is parsed: a tree in which every leaf knows where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_core.contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something was written.

    Args:
        layer: as people read it: ``default``, ``preset mine``, ``environment``.
        where: file:line, the variable, or the argument as typed.
        key: the dotted key as it was typed.
    """

    layer: str
    where: str
    key: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar or a list.

    Args:
        value: plain data.
        text: the value as it was typed.
        origin: where.
        overrode: what lower layers said, highest first.
        unset: written as ``~key``: nothing is set here any more, whatever lower layers said.
        folder: that a path is relative to; None: the working directory.
    """

    value: Any
    text: str
    origin: Origin
    overrode: tuple[Leaf, ...] = ()
    unset: bool = False
    folder: Path | None = None

    @property
    def is_null(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping.

    Args:
        items: in the order they were written.
        origin: where it begins, in the highest layer that has it.
        replaces: written over a value or ``~key``: not merged with what is below.
    """

    items: dict[str, Node]
    origin: Origin
    replaces: bool = False


Node = Leaf | Table


def leaves(node: Node) -> Iterator[Leaf]:
    """Every leaf under a node, the node itself included. An empty mapping counts as one."""
    if isinstance(node, Leaf):
        yield node
    elif not node.items:
        yield Leaf({}, "{}", node.origin)
    else:
        for child in node.items.values():
            yield from leaves(child)


def in_folder(table: Table, folder: Path) -> Table:
    """The tree of a file in a folder, whose paths are relative to it."""

    def placed(node: Node) -> Node:
        if isinstance(node, Table):
            return in_folder(node, folder)
        return replace(node, folder=folder) if isinstance(node.value, str) else node

    return replace(table, items={key: placed(node) for key, node in table.items.items()})


def merge(lower: Node | None, upper: Node) -> Node:
    """The upper node over the lower one: mappings merge key by key, everything else replaces."""
    if lower is None:
        return upper
    if isinstance(upper, Leaf):
        below = tuple(
            past for leaf in leaves(lower) for past in (replace(leaf, overrode=()), *leaf.overrode)
        )
        return replace(upper, overrode=upper.overrode + below)
    if isinstance(lower, Leaf) or upper.replaces:
        return replace(upper, replaces=True)
    items = dict(lower.items)
    for key, child in upper.items.items():
        items[key] = merge(items.get(key), child)
    return Table(items, upper.origin, lower.replaces)


def plain(node: Node) -> Any:
    """The data without origins; what was unset is left out."""
    if isinstance(node, Leaf):
        return node.value
    return {
        key: plain(child)
        for key, child in node.items.items()
        if not (isinstance(child, Leaf) and child.unset)
    }


MOST_VALUES = 10_000
"""Most keys and values of a file, mapping or argument, with aliases (``*name``) written out."""

MOST_LEVELS = 50
"""Most mappings and lists inside one another."""

TOO_MANY = f"more than {MOST_VALUES:,} keys and values"
TOO_DEEP = f"more than {MOST_LEVELS} levels of mappings and lists inside one another"


def from_data(data: Any, origin: Origin) -> Node:
    """A tree of plain data that has one origin; keys extend ``origin.key``.

    Raises:
        ConfigError: it is too large, nested too deeply, or holds itself.
    """
    _measure(data, origin, 0, 0)
    return _from_data(data, origin)


def _measure(data: Any, origin: Origin, values: int, levels: int) -> int:
    """Count values up to the limits; what holds itself has too many levels or values."""
    if values >= MOST_VALUES:
        raise ConfigError(f"{origin.where}: {TOO_MANY}")
    if not isinstance(data, Mapping | list | tuple):
        return values + 1
    if levels == MOST_LEVELS:
        raise ConfigError(f"{origin.where}: {TOO_DEEP}")
    if isinstance(data, Mapping):
        values += len(data)
    for child in data.values() if isinstance(data, Mapping) else data:
        values = _measure(child, origin, values, levels + 1)
    return values + 1


def _from_data(data: Any, origin: Origin) -> Node:
    if isinstance(data, Mapping):
        return Table(
            {
                str(key): _from_data(
                    value, replace(origin, key=f"{origin.key}.{key}" if origin.key else str(key))
                )
                for key, value in data.items()
            },
            origin,
        )
    return Leaf(data, str(data), origin)
