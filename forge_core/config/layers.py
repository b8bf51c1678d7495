"""The layers of a config, and how a higher one lies over a lower one.

Lowest first: fields' own defaults; ``default`` (the components a config starts with); the recipe's
section defaults; the model preset; the file or preset with its ``extends`` below it; ``FORGE_*``
variables; ``key=value`` arguments.

pydantic-settings reads files and variables too, but hands over merged values only: its sources do
not say which variable or line a value came from, and importing it costs the command 180 ms or more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core.config.sections import (
    ALIASES,
    COMPONENT_MAPS,
    COMPONENT_SECTIONS,
    EXCLUSIVE,
    KERNEL_KEYS,
    RUN_WIDE,
)
from forge_core.config.tree import Leaf, Node, Origin, Table, from_data, merge
from forge_core.config.yaml_source import display, load_file, parse_value
from forge_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog

SECTIONS: tuple[str, ...] = (
    "model",
    "recipe",
    "training",
    "distributed",
    "trainer",
    "loss",
    "generator",
    "sampling",
    "transport",
    "environment",
    "rewards",
    "dataset",
    "eval_dataset",
    "evaluation",
    "checkpointing",
    "runtime",
    "trackers",
)
"""Every section, in the order in which a config is shown."""

DEFAULTS: Mapping[str, Any] = {
    "recipe": {"use": "sft"},
    "trainer": {"use": "torch"},
    "generator": {"use": "torch"},
    "transport": {"use": "memory"},
    "environment": {"use": "single_turn"},
    "runtime": {"use": "local"},
    "trackers": {"console": {}, "jsonl": {}},
}
"""The components a config starts with."""

ENVIRONMENT_PREFIX = "FORGE_"
SWITCHES: frozenset[str] = frozenset(
    {"FORGE_DEBUG", "FORGE_DISABLE_PLUGINS", "FORGE_PLUGIN_AUTOLOAD"}
)
"""Variables of the command itself; no config."""

_KEY = re.compile(r"[^\s.=~]+(?:[.][^\s.=]+)*")


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


# --- where layers come from -----------------------------------------------------------------------


def default_layer() -> Layer:
    """The components a config starts with."""
    return _builtin(DEFAULTS, "default")


def recipe_layer(recipe: str, section_defaults: Mapping[str, Any]) -> Layer:
    """What a recipe's settings class says other sections default to.

    Raises:
        PluginError: it speaks of sections that are not a stage's.
    """
    layer = _builtin(section_defaults, f"recipe {recipe}")
    foreign = {"recipe", *RUN_WIDE} & set(layer.sections)
    if foreign or layer.stages:
        named = ", ".join(sorted(foreign) or ["stages"])
        raise PluginError(f"recipe {recipe}: section_defaults cannot set {named}")
    return layer


def source_layers(
    catalog: Catalog,
    source: str | Path | Mapping[str, Any] | None,
    environ: Mapping[str, str],
    problems: list[str],
) -> tuple[str, list[Layer]]:
    """The name of the run, and the file, preset or mapping over all it extends, lowest first."""
    if source is None:
        return "run", []
    files = _Files(catalog, environ, problems)
    if isinstance(source, Mapping):
        tree = from_data(source, Origin("mapping", "mapping", ""))
        assert isinstance(tree, Table)
        return "run", [*files.extended(tree, Path.cwd()), check(tree, problems)]
    found = locate(catalog, source)
    return found.name, files.layers(found)


def model_layers(
    catalog: Catalog, name: str, environ: Mapping[str, str], problems: list[str]
) -> list[Layer]:
    """The model preset of that name with what it extends; empty when there is none."""
    if name not in {entry.name for entry in catalog.presets("model")}:
        return []
    found = Located(catalog.preset(name, "model").path, name, f"model preset {name}")
    layers = _Files(catalog, environ, problems).layers(found)
    if any(layer.stages for layer in layers):
        problems.append(f"{display(found.path)}: stages: a model preset cannot have stages")
    return [Layer(layer.sections) for layer in layers]


def environment_layer(environ: Mapping[str, str], problems: list[str]) -> Layer:
    """``FORGE_SECTION__KEY=value`` variables.

    A variable without a double underscore is config only if it is called like a section; others
    belong to other programs (several are called Forge), unless they look like a misspelt switch.
    """
    tree = Table({}, Origin("environment", "environment", ""))
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in SWITCHES:
            continue
        words = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(words) == 1 and words[0] not in SECTIONS:
            near = difflib.get_close_matches(variable, SWITCHES, n=1, cutoff=0.85)
            if near:
                problems.append(f"{variable}: unknown variable; did you mean {near[0]}?")
            continue
        key = ".".join(words)
        if not all(words) or words[0] == "extends":
            problems.append(f"{variable}: {key}: not a key; write FORGE_SECTION__KEY")
            continue
        origin = Origin("environment", variable, key)
        try:
            _put(tree, words, parse_value(environ[variable], origin, environ))
        except ConfigError as error:
            problems.extend(error.problems)
    return check(tree, problems)


def override_layer(
    overrides: Sequence[str] | Mapping[str, Any],
    environ: Mapping[str, str],
    problems: list[str],
) -> Layer:
    """``key=value`` and ``~key`` arguments in order, or a mapping handed over in code."""
    if isinstance(overrides, Mapping):
        return _mapping_overrides(overrides, problems)
    tree = Table({}, Origin("command line", "command line", ""))
    for argument in overrides:
        removes = argument.startswith("~")
        key, equals, text = argument.removeprefix("~").partition("=")
        if removes == bool(equals) or not _KEY.fullmatch(key):
            problems.append(f"{argument}: not an override; write key=value, or ~key to remove one")
            continue
        origin = Origin("command line", argument, key)
        if key.split(".")[0] == "extends":
            problems.append(f"{argument}: extends stands in a file, not on the command line")
        elif removes:
            _put(tree, key.split("."), Leaf(None, argument, origin, unset=True))
        else:
            try:
                _put(tree, key.split("."), parse_value(text, origin, environ))
            except ConfigError as error:
                problems.extend(error.problems)
    return check(tree, problems)


@dataclass(frozen=True)
class Located:
    """What a person named: the file behind it, its name as a run, and what to call its layer."""

    path: Path
    name: str
    layer: str = "file"


def locate(catalog: Catalog, source: str | Path) -> Located:
    """Find a preset by its name, a YAML file, or a run folder's config. Presets come first.

    Raises:
        ConfigError: there is no such thing.
    """
    if source in {entry.name for entry in catalog.presets()}:
        return _preset(catalog, str(source))
    path = Path(source).expanduser()
    if path.is_dir() and (path / "config.yaml").is_file():
        path = path / "config.yaml"
    if path.is_file():
        return Located(path, path.stem)
    if path.is_dir():
        raise ConfigError(f"{source}: a folder without config.yaml, so not a run folder")
    if isinstance(source, Path) or path.suffix in {".yaml", ".yml"} or path.parent != Path():
        raise ConfigError(f"{source}: no such file")
    try:
        return _preset(catalog, source)
    except PluginError as error:
        raise ConfigError(f"{source}: no such file, and {error}") from None


def _preset(catalog: Catalog, name: str) -> Located:
    preset = catalog.preset(name)
    return Located(preset.path, preset.name, f"preset {preset.name}")


def choices(word: str, allowed: Iterable[str], prefix: str = "") -> str:
    """``; did you mean X? (allowed: ...)``, as far as there is something to say."""
    names = sorted(allowed)
    near = difflib.get_close_matches(word, names, n=1)
    suggestion = f"; did you mean {prefix}{near[0]}?" if near else ""
    return f"{suggestion} (allowed: {', '.join(names)})" if names else suggestion


class _Files:
    """Reads a file and what it extends."""

    def __init__(self, catalog: Catalog, environ: Mapping[str, str], problems: list[str]) -> None:
        self.catalog = catalog
        self.environ = environ
        self.problems = problems

    def layers(self, found: Located, chain: tuple[Path, ...] = ()) -> list[Layer]:
        """The file over what it extends, lowest first."""
        path = found.path.resolve()
        if path in chain:
            circle = " -> ".join(map(display, (*chain[chain.index(path) :], path)))
            raise ConfigError(f"{display(path)}: extends itself: {circle}")
        tree = load_file(found.path, found.layer, self.environ)
        below = self.extended(tree, path.parent, (*chain, path))
        return [*below, check(tree, self.problems)]

    def extended(self, tree: Table, folder: Path, chain: tuple[Path, ...] = ()) -> list[Layer]:
        """The layers under ``extends:``, a file beside this one or a preset."""
        node = tree.items.get("extends")
        if node is None:
            return []
        where = f"{node.origin.where}: extends"
        if isinstance(node, Table) or not isinstance(node.value, str):
            raise ConfigError(f"{where}: must be a file or a preset's name")
        beside = folder / Path(node.value).expanduser()
        if beside.is_file():
            return self.layers(Located(beside, beside.stem), chain)
        try:
            found = locate(self.catalog, node.value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return self.layers(found, chain)


def _builtin(data: Mapping[str, Any], name: str) -> Layer:
    tree = from_data(data, Origin(name, name, ""))
    assert isinstance(tree, Table)
    problems: list[str] = []
    layer = check(tree, problems)
    if problems:
        raise ConfigError(problems)
    return layer


def _mapping_overrides(overrides: Mapping[str, Any], problems: list[str]) -> Layer:
    tree = Table({}, Origin("overrides", "overrides", ""))
    for key, value in overrides.items():
        where = f"override {key}"
        if key.split(".")[0] == "extends":
            problems.append(f"{where}: extends stands in the source, not in an override")
            continue
        _put(tree, key.split("."), from_data(value, Origin("overrides", where, key)))
    return check(tree, problems)


def _put(tree: Table, words: Sequence[str], node: Node) -> None:
    """Merge a node into a layer that is being built, argument by argument."""
    *parents, last = words
    for depth, word in enumerate(parents, start=1):
        child = tree.items.get(word)
        if not isinstance(child, Table):
            origin = replace(node.origin, key=".".join(words[:depth]))
            # After ``~key`` or ``key=null`` in the same layer: a fresh start.
            child = tree.items[word] = Table({}, origin, replaces=child is not None)
        tree = child
    present = tree.items.get(last)
    if isinstance(present, Leaf) and isinstance(node, Table):
        node = replace(node, replaces=True)
    tree.items[last] = merge(present, node)


# --- the shape of a layer -------------------------------------------------------------------------


def check(tree: Table, problems: list[str]) -> Layer:
    """Sort a layer into sections and stages; what cannot stand there becomes a problem."""
    sections: dict[str, Node] = {}
    stages: dict[str, dict[str, Node] | Leaf] = {}
    name: Leaf | None = None
    items = dict(tree.items)
    items.pop("extends", None)
    name_node = items.pop("name", None)
    if isinstance(name_node, Leaf) and isinstance(name_node.value, str) and name_node.value:
        name = name_node
    elif name_node is not None:
        problems.append(f"{at(name_node)}: must be text, the run's name")
    stages_node = items.pop("stages", None)
    _rename_aliases(items, problems)
    for key, node in items.items():
        if key not in SECTIONS:
            allowed = {"name", "extends", "stages", *SECTIONS}
            problems.append(f"{at(node)}: unknown section{choices(key, allowed)}")
        elif (checked := _checked_section(key, node, problems)) is not None:
            sections[key] = checked
    if isinstance(stages_node, Table):
        for stage, node in stages_node.items.items():
            if isinstance(node, Table):
                stages[stage] = _checked_stage(node, problems)
            elif node.is_null:
                stages[stage] = node
            else:
                problems.append(f"{at(node)}: must be a mapping of sections; not {node.text!r}")
    elif stages_node is not None and not stages_node.is_null:
        problems.append(f"{at(stages_node)}: must be a mapping of stages, in their order")
    return Layer(sections, stages, name)


def at(node: Node) -> str:
    """``where: key`` with which every problem line begins."""
    return f"{node.origin.where}: {node.origin.key}"


def _checked_stage(node: Table, problems: list[str]) -> dict[str, Node]:
    items = dict(node.items)
    _rename_aliases(items, problems, prefix=node.origin.key)
    sections: dict[str, Node] = {}
    for key, child in items.items():
        if key in RUN_WIDE:
            problems.append(f"{at(child)}: belongs to the whole run; move it to the top level")
        elif key not in SECTIONS:
            allowed = set(SECTIONS) - RUN_WIDE
            prefix = child.origin.key.removesuffix(key)
            problems.append(f"{at(child)}: unknown section{choices(key, allowed, prefix)}")
        elif (checked := _checked_section(key, child, problems)) is not None:
            sections[key] = checked
    return sections


def _checked_section(section: str, node: Node, problems: list[str]) -> Node | None:
    """The section as it can be merged, or None after a problem."""
    if isinstance(node, Leaf):
        if node.is_null:
            return node
        hint = f"; write {node.origin.key}.use={node.text}" if section in COMPONENT_SECTIONS else ""
        problems.append(f"{at(node)}: must be a mapping; not {node.text!r}{hint}")
        return None
    if section in COMPONENT_SECTIONS:
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
                problems.append(
                    f"{at(child)}: must be a mapping; not {child.text!r}; "
                    f"write {child.origin.key}.use={child.text}"
                )
        return replace(node, items=parts)
    return node


def _checked_component(node: Table, problems: list[str]) -> Table | None:
    use = node.items.get("use")
    if use is None or (isinstance(use, Leaf) and (use.unset or isinstance(use.value, str))):
        return node
    given = f"; not {use.text!r}" if isinstance(use, Leaf) else ""
    problems.append(f"{at(use)}: must be the name of a component{given}")
    return None


def _rename_aliases(sections: dict[str, Node], problems: list[str], prefix: str = "") -> None:
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


# --- one layer over another -----------------------------------------------------------------------


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
    layers: Sequence[Layer], stage: str | None, problems: list[str]
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
                merged[name] = _merge_section(name, merged.get(name), node, problems)
    return merged


def component_name(node: Table, part: str | None = None) -> str | None:
    """What ``use`` says, else the name of the part."""
    use = node.items.get("use")
    return part if not isinstance(use, Leaf) or use.unset else use.value


def _merge_section(section: str, lower: Node | None, upper: Node, problems: list[str]) -> Node:
    if section in COMPONENT_SECTIONS:
        return _merge_component(section, lower, upper, None)
    if section in COMPONENT_MAPS:
        return _merge_parts(section, lower, upper, problems)
    if section in EXCLUSIVE and isinstance(lower, Table) and isinstance(upper, Table):
        lower = _without_rivals(lower, upper, EXCLUSIVE[section])
    return merge(lower, upper)


def _merge_component(section: str, lower: Node | None, upper: Node, part: str | None) -> Node:
    """Another component in the upper layer: the lower one's own keys are dropped with it."""
    if isinstance(lower, Table) and isinstance(upper, Table):
        chosen = component_name(upper, part)
        if "use" in upper.items and chosen != component_name(lower, part):
            keep = {"use", *(KERNEL_KEYS[section].model_fields if section in KERNEL_KEYS else ())}
            lower = replace(
                lower, items={key: node for key, node in lower.items.items() if key in keep}
            )
    return merge(lower, upper)


def _merge_parts(section: str, lower: Node | None, upper: Node, problems: list[str]) -> Node:
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
        base[part] = _merge_component(section, base.get(part), node, part)
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
