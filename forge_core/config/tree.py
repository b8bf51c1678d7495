"""The merged config before it is parsed: a tree in which every leaf knows where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something was written.

    Args:
        layer: as people read it: ``default``, ``preset quickstart``, ``environment``.
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
    """

    value: Any
    text: str
    origin: Origin
    overrode: tuple[Leaf, ...] = ()
    unset: bool = False

    @property
    def is_null(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping.

    Args:
        items: in the order they were written.
        origin: where it begins, in the highest layer that has it.
        replaces: written after ``~key`` in the same layer: not merged with what is below.
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
        return upper
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


def from_data(data: Any, origin: Origin) -> Node:
    """A tree of plain data that has one origin; keys extend ``origin.key``."""
    if isinstance(data, Mapping):
        return Table(
            {
                str(key): from_data(
                    value, replace(origin, key=f"{origin.key}.{key}" if origin.key else str(key))
                )
                for key, value in data.items()
            },
            origin,
        )
    return Leaf(data, str(data), origin)
