"""Sections that stand inside another one, such as ``training.optimizer``.

While layers are merged and parsed each is a section of its own, under its dotted name, with the
rules of every section that selects a component; people read and write it where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forge_core.config.tree import Leaf, Node, Table
from forge_core.sections import NESTED


def taken_out(tree: Table) -> Table:
    """A layer's tree with nested sections beside those that they stand in, in stages too.

    A name alone, as in ``training: {optimizer: mine}``, is short for ``{use: mine}``.
    """
    items: dict[str, Node] = {}
    for key, node in tree.items.items():
        inner = NESTED.get(key, ())
        if key == "stages" and isinstance(node, Table):
            stages = {
                stage: taken_out(child) if isinstance(child, Table) else child
                for stage, child in node.items.items()
            }
            items[key] = replace(node, items=stages)
        elif not inner or not isinstance(node, Table):
            items[key] = node
        else:
            rest = {name: child for name, child in node.items.items() if name not in inner}
            if rest or not node.items or node.replaces:
                items[key] = replace(node, items=rest)
            for name in inner:
                if name in node.items:
                    items[f"{key}.{name}"] = _section(node.items[name])
    return replace(tree, items=items)


def apart(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The same for plain data."""
    found: dict[str, Any] = {}
    for key, value in sections.items():
        if not isinstance(value, Mapping) or key not in NESTED:
            found[key] = value
            continue
        found[key] = {name: each for name, each in value.items() if name not in NESTED[key]}
        found |= {f"{key}.{name}": value[name] for name in NESTED[key] if name in value}
    return found


def put_back(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with nested sections where people write them."""
    found: dict[str, Any] = {}
    for key, value in sections.items():
        outer, _, name = key.partition(".")
        if name:
            found[outer] = {**(found.get(outer) or {}), name: value}
        else:
            found[key] = value
    return found


def _section(node: Node) -> Node:
    if isinstance(node, Leaf) and not node.unset and isinstance(node.value, str):
        return Table({"use": node}, node.origin)
    return node
