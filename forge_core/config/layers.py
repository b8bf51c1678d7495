"""One layer of a config: sections and stages, their shape checked, values still unparsed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from forge_core.config.tree import Leaf, Node, Table
from forge_core.config.yaml_source import shortened
from forge_core.sections import ALIASES, COMPONENT_MAPS, RUN_WIDE, Sections

SECTIONS: tuple[str, ...] = (
    "model",
    "models",
    "recipe",
    "training",
    "training.optimizer",
    "training.schedule",
    "distributed",
    "trainer",
    "reference",
    "loss",
    "advantage",
    "generator",
    "sampling",
    "replay_buffer",
    "transport",
    "environment",
    "rewards",
    "reward_workers",
    "dataset",
    "eval_dataset",
    "evaluation",
    "checkpointing",
    "runtime",
    "trackers",
)
"""Every section, in the order in which a config is shown."""

_OUTER = [section for section in SECTIONS if "." not in section]

MOST_STAGES = 100

MOST_PROBLEMS = 50
"""Problems after which no more are looked for."""

_NAME = re.compile(r"[^/\\.][^/\\]*")
_STAGE = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Layer:
    """One layer, its shape already checked.

    Args:
        sections: of the top level, by name.
        stages: overrides of the same sections by stage; a leaf (null) removes the stage.
        name: the ``name:`` key.
    """

    sections: dict[str, Node]
    stages: dict[str, dict[str, Node] | Leaf] = field(default_factory=dict)
    name: Leaf | None = None


def check(tree: Table, problems: list[str], kinds: Sections) -> Layer:
    """Sort a layer into sections and stages; what does not belong there becomes a problem."""
    sections: dict[str, Node] = {}
    stages: dict[str, dict[str, Node] | Leaf] = {}
    name: Leaf | None = None
    items = dict(tree.items)
    items.pop("extends", None)
    name_node = items.pop("name", None)
    if isinstance(name_node, Leaf) and _NAME.fullmatch(str(name_node.value or "")):
        name = replace(name_node, value=str(name_node.value))
    elif name_node is not None:
        problems.append(f"{at(name_node)}: must be a name for the run's folder, without slashes")
    stages_node = items.pop("stages", None)
    _rename_aliases(items, problems)
    for key, node in items.items():
        if len(problems) >= MOST_PROBLEMS:
            break
        if key not in SECTIONS and key not in kinds.added:
            allowed = {"name", "extends", "stages", *_OUTER, *kinds.added}
            problems.append(f"{at(node)}: unknown section{choices(key, allowed)}")
        elif (checked := _checked_section(key, node, problems, kinds)) is not None:
            sections[key] = checked
    if isinstance(stages_node, Table) and len(stages_node.items) > MOST_STAGES:
        problems.append(f"{at(stages_node)}: more than {MOST_STAGES} stages")
    elif isinstance(stages_node, Table):
        for stage, node in stages_node.items.items():
            if not _STAGE.fullmatch(stage):
                problems.append(f"{at(node)}: a stage's name is made of letters, digits, _ and -")
            elif isinstance(node, Table):
                stages[stage] = _checked_stage(node, problems, kinds)
            elif node.is_null:
                stages[stage] = node
            else:
                problems.append(
                    f"{at(node)}: must be a mapping of sections; not {shortened(node.text)!r}"
                )
    elif stages_node is not None:
        problems.append(f"{at(stages_node)}: must be a mapping of stages, in their order")
    return Layer(sections, stages, name)


def at(node: Node) -> str:
    """``where: key`` with which every problem line begins."""
    return f"{node.origin.where}: {node.origin.key}"


def choices(word: str, allowed: Iterable[str], prefix: str = "") -> str:
    """``; did you mean X? (allowed: ...)``, as far as there is something to say."""
    names = sorted(allowed)
    near = difflib.get_close_matches(word[:100], names, n=1)
    suggestion = f"; did you mean {prefix}{near[0]}?" if near else ""
    return f"{suggestion} (allowed: {', '.join(names)})" if names else suggestion


def _checked_stage(node: Table, problems: list[str], kinds: Sections) -> dict[str, Node]:
    items = dict(node.items)
    _rename_aliases(items, problems)
    sections: dict[str, Node] = {}
    for key, child in items.items():
        if len(problems) >= MOST_PROBLEMS:
            break
        if key in RUN_WIDE:
            problems.append(f"{at(child)}: belongs to the whole run; move it to the top level")
        elif key not in SECTIONS and key not in kinds.added:
            allowed = {*_OUTER, *kinds.added} - RUN_WIDE
            prefix = child.origin.key.removesuffix(key)
            problems.append(f"{at(child)}: unknown section{choices(key, allowed, prefix)}")
        elif (checked := _checked_section(key, child, problems, kinds)) is not None:
            sections[key] = checked
    return sections


def _checked_section(section: str, node: Node, problems: list[str], kinds: Sections) -> Node | None:
    """The section as it can be merged, or None after a problem."""
    if isinstance(node, Leaf):
        if node.is_null:
            return node
        hint = _component_hint(node) if kinds.family(section) is not None else ""
        problems.append(f"{at(node)}: must be a mapping; not {shortened(node.text)!r}{hint}")
        return None
    if kinds.family(section) is not None:
        return _checked_component(node, problems)
    if section in COMPONENT_MAPS:
        parts: dict[str, Node] = {}
        for part, child in node.items.items():
            if isinstance(child, Table):
                checked = _checked_component(child, problems)
                if checked is not None:
                    parts[part] = checked
            elif child.is_null:
                parts[part] = replace(child, unset=False)
            else:
                hint = _component_hint(child)
                problems.append(
                    f"{at(child)}: must be a mapping; not {shortened(child.text)!r}{hint}"
                )
        return replace(node, items=parts)
    return node


def _component_hint(leaf: Leaf) -> str:
    """What to write where a component, or its name, is given for its section."""
    if callable(leaf.value):
        return (
            f"; give the object itself as {leaf.origin.key}.use, or pass a reward with "
            "Forge().run(..., rewards=[...])"
        )
    return f"; write {leaf.origin.key}.use={shortened(leaf.text)}"


def _checked_component(node: Table, problems: list[str]) -> Table | None:
    use = node.items.get("use")
    if use is None or (isinstance(use, Leaf) and (use.unset or isinstance(use.value, str))):
        return node
    given = f"; not {shortened(use.text)!r}" if isinstance(use, Leaf) else ""
    problems.append(f"{at(use)}: must be the name of a component{given}")
    return None


def _rename_aliases(sections: dict[str, Node], problems: list[str]) -> None:
    """Move what was typed under another name to where it belongs; its origin keeps the name."""
    for alias, real in ALIASES.items():
        (section, key), (to_section, to_key) = alias.split("."), real.split(".")
        table = sections.get(section)
        if not isinstance(table, Table) or key not in table.items:
            continue
        node = table.items[key]
        sections[section] = replace(
            table, items={name: child for name, child in table.items.items() if name != key}
        )
        target = sections.get(to_section, Table({}, node.origin))
        if not isinstance(target, Table):
            continue
        if to_key in target.items:
            problems.append(
                f"{at(node)}: another name of {real}, which is given too "
                f"({target.items[to_key].origin.where})"
            )
            continue
        sections[to_section] = replace(target, items={**target.items, to_key: node})
