"""How a higher layer lies over a lower one.

Lowest first: fields' own defaults; ``default`` (the components a config starts with); the recipe's
section defaults; the model preset; the file or preset with its ``extends`` below it; ``FORGE_*``
variables; ``key=value`` arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from forge_core.config.layers import Layer, at, choices
from forge_core.config.tree import Leaf, Node, Table, merge
from forge_core.sections import COMPONENT_MAPS, EXCLUSIVE, Sections


def stage_names(layers: Sequence[Layer], problems: list[str]) -> list[str]:
    """Stages in the order in which they first appear, less those that were removed."""
    names: dict[str, bool] = {}
    for layer in layers:
        for stage, node in layer.stages.items():
            if isinstance(node, Leaf) and not names.get(stage):
                known = [name for name, there in names.items() if there]
                problems.append(
                    f"{at(node)}: no lower layer has this stage{choices(stage, known)}; "
                    "null removes a stage, {} is one without overrides"
                )
            names[stage] = not isinstance(node, Leaf)
    return [name for name, there in names.items() if there]


def merged_sections(
    layers: Sequence[Layer], stage: str | None, problems: list[str], kinds: Sections
) -> dict[str, Node]:
    """All layers over each other, as a stage sees them (None: as the top level says).

    Within a layer the stage's override lies over the base; a higher layer lies over both.
    """
    merged: dict[str, Node] = {}
    overrides = [layer.stages.get(stage) if stage is not None else None for layer in layers]
    # A stage that was removed and comes again in a higher layer starts afresh.
    removed = max(
        (i for i, override in enumerate(overrides) if isinstance(override, Leaf)), default=-1
    )
    for index, layer in enumerate(layers):
        override = overrides[index]
        here = [layer.sections]
        if isinstance(override, dict) and index > removed:
            here.append(override)
        for sections in here:
            for name, node in sections.items():
                merged[name] = _merge_section(name, merged.get(name), node, problems, kinds)
    return merged


def component_name(node: Table, part: str | None = None) -> str | None:
    """What ``use`` says, else the name of the part."""
    use = node.items.get("use")
    return part if not isinstance(use, Leaf) or use.unset else use.value


def _merge_section(
    section: str, lower: Node | None, upper: Node, problems: list[str], kinds: Sections
) -> Node:
    keys = kinds.keys(section)
    kernel = keys.model_fields if keys is not None else {}
    if kinds.family(section) is not None:
        return _merge_component(lower, upper, None, kernel)
    if section in COMPONENT_MAPS:
        return _merge_parts(lower, upper, problems, kernel)
    if section in EXCLUSIVE and isinstance(lower, Table) and isinstance(upper, Table):
        lower = _without_rivals(lower, upper, EXCLUSIVE[section])
    return merge(lower, upper)


def _merge_component(
    lower: Node | None, upper: Node, part: str | None, kernel: Collection[str]
) -> Node:
    """Another component in the upper layer: the lower one's own keys are dropped with it.

    Args:
        lower: the section or part so far.
        upper: what the upper layer says.
        part: its name, for a part.
        kernel: keys that are the kernel's, and stay.
    """
    if isinstance(lower, Table) and isinstance(upper, Table):
        chosen = component_name(upper, part)
        if "use" in upper.items and chosen != component_name(lower, part):
            keep = {"use", *kernel}
            lower = replace(
                lower, items={key: node for key, node in lower.items.items() if key in keep}
            )
    return merge(lower, upper)


def _merge_parts(
    lower: Node | None, upper: Node, problems: list[str], kernel: Collection[str]
) -> Node:
    below = lower.items if isinstance(lower, Table) else {}
    if isinstance(upper, Leaf):  # null or ~ for the whole map: every part goes
        items: dict[str, Node] = {
            part: merge(node, replace(upper, unset=False)) for part, node in below.items()
        }
        return Table(items, upper.origin)
    base: dict[str, Node] = dict(below)
    if upper.replaces:
        gone = Leaf(None, "", upper.origin)
        base = {part: merge(node, gone) for part, node in below.items()}
    for part, node in upper.items.items():
        if isinstance(node, Leaf) and part not in below:
            known = [name for name, child in below.items() if isinstance(child, Table)]
            problems.append(
                f"{at(node)}: no lower layer has this part{choices(part, known)}; "
                "null removes a part, {} is one with default settings"
            )
            continue
        base[part] = _merge_component(base.get(part), node, part, kernel)
    return Table(base, upper.origin)


def _without_rivals(lower: Table, upper: Table, pair: tuple[str, str]) -> Table:
    """Setting one key of a pair takes the place of the other in lower layers."""
    items = dict(lower.items)
    for key, rival in (pair, pair[::-1]):
        winner = upper.items.get(key)
        if winner is None or rival in upper.items or rival not in items:
            continue
        if isinstance(winner, Leaf) and winner.is_null:
            continue
        gone = Leaf(None, "null", winner.origin)
        items[rival] = merge(items[rival], gone)
    return replace(lower, items=items)
