"""The effective config as plain data, and where each of its values came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forge_core.config.layers import SECTIONS
from forge_core.config.nested import apart, put_back
from forge_core.config.tree import Leaf, Node, Origin, Table
from forge_core.config.yaml_source import dump
from forge_core.contracts.config import Provenance
from forge_core.sections import COMPONENT_MAPS, RUN_WIDE


def to_yaml(tree: Mapping[str, Any]) -> str:
    """A config as YAML, a blank line between sections."""
    return "\n".join(dump({key: value}) for key, value in tree.items())


def effective_tree(
    name: str, run: Mapping[str, Any], stages: Sequence[tuple[str | None, Mapping[str, Any]]]
) -> dict[str, Any]:
    """One config out of the parsed sections; it loads to the same as it stands.

    What all stages share is at the top, the rest in ``stages:``.

    Args:
        name: of the run.
        run: effective data of the run-wide sections.
        stages: effective data of each stage's sections; one without a name is the top level.
    """
    stages = [(stage, apart(sections)) for stage, sections in stages]
    top: dict[str, Any] = {}
    own: list[dict[str, Any]] = [{} for _ in stages]
    added = [name for _, sections in stages for name in sections if name not in SECTIONS]
    for section in dict.fromkeys([*SECTIONS, *added]):
        if section in RUN_WIDE:
            if section in run:
                top[section] = run[section]
            continue
        values = [sections.get(section, _ABSENT) for _, sections in stages]
        common, rests = _share(section, values)
        if common is not _ABSENT:
            top[section] = common
        for rest, stage in zip(rests, own, strict=True):
            if rest is not _ABSENT:
                stage[section] = rest
    tree: dict[str, Any] = {"name": name, **put_back(top)}
    if stages[0][0] is not None:
        tree["stages"] = {
            stage: put_back(rest) for (stage, _), rest in zip(stages, own, strict=True)
        }
    return tree


def stage_tree(tree: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """One stage of an effective tree, as a config of its own."""
    alone = apart({key: value for key, value in tree.items() if key != "stages"})
    for section, value in apart(tree.get("stages", {}).get(stage, {})).items():
        common = alone.get(section)
        if isinstance(common, dict) and isinstance(value, dict):
            value = {**common, **value}
        alone[section] = value
    order = ["name", *SECTIONS, *alone]
    return put_back(dict(sorted(alone.items(), key=lambda item: order.index(item[0]))))


def provenance_of(
    prefix: str, effective: Mapping[str, Any], merged: Mapping[str, Node]
) -> Iterator[tuple[str, Provenance]]:
    """Dotted key -> where the value came from, for every effective value.

    Args:
        prefix: ``stages.NAME.`` or empty.
        effective: section -> values.
        merged: section -> the tree they were parsed from.
    """
    for section, value in effective.items():
        yield from _walk(prefix + section, value, merged.get(section))


_ABSENT: Any = object()


def _share(section: str, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """What goes to the top level, and what remains for each stage."""
    nothing = [_ABSENT] * len(values)
    first = values[0]
    if all(_same(value, first) for value in values):
        return first, nothing
    alike = section not in COMPONENT_MAPS and all(isinstance(value, dict) for value in values)
    if not alike or any(value.get("use") != first.get("use") for value in values):
        return _ABSENT, list(values)
    common = {
        key: value
        for key, value in first.items()
        if all(key in other and _same(other[key], value) for other in values)
    }
    rests = [{key: value[key] for key in value if key not in common} for value in values]
    return common or _ABSENT, [rest or _ABSENT for rest in rests]


def _same(one: Any, other: Any) -> bool:
    """Equal also in type: 1, 1.0 and True are three values to a strict parser."""
    return one is other or (
        one is not _ABSENT and other is not _ABSENT and repr(one) == repr(other)
    )


def _walk(key: str, value: Any, node: Node | None) -> Iterator[tuple[str, Provenance]]:
    if isinstance(value, dict) and value:
        items = node.items if isinstance(node, Table) else {}
        for name, child in value.items():
            yield from _walk(f"{key}.{name}", child, items.get(name))
        return
    yield key, _provenance(key, value, node)


def _provenance(key: str, value: Any, node: Node | None) -> Provenance:
    default = Origin("default", "", key)
    origin = node.origin if node is not None else default
    past = node.overrode if isinstance(node, Leaf) else ()
    if isinstance(node, Leaf) and node.unset:
        origin, past = default, (replace(node, value=node.text), *past)
    return replace(_past(Leaf(value, "", origin)), overrode=tuple(map(_past, past)))


def _past(leaf: Leaf) -> Provenance:
    origin = leaf.origin
    return Provenance(value=leaf.value, layer=origin.layer, where=origin.where, key=origin.key)
