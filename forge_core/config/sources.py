"""Where layers come from: files and presets with what they extend, variables, arguments.

pydantic-settings reads files and variables too, but hands over merged values only: its sources do
not say which variable or line a value came from, and importing it costs the command 180 ms or more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core.config.layers import SECTIONS, Layer, check
from forge_core.config.tree import Leaf, Node, Origin, Table, from_data, merge
from forge_core.config.yaml_source import display, load_file, parse_value
from forge_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog

ENVIRONMENT_PREFIX = "FORGE_"
SWITCHES: frozenset[str] = frozenset(
    {"FORGE_DEBUG", "FORGE_DISABLE_PLUGINS", "FORGE_PLUGIN_AUTOLOAD"}
)
"""Variables of the command itself; no config."""

_KEY = re.compile(r"[^\s.=~]+(?:[.][^\s.=]+)*")


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
    if isinstance(source, Path) or _is_path(source):
        raise ConfigError(f"{source}: no such file")
    try:
        return _preset(catalog, source)
    except PluginError as error:
        raise ConfigError(f"{source}: no such file, and {error}") from None


def _preset(catalog: Catalog, name: str) -> Located:
    preset = catalog.preset(name)
    return Located(preset.path, preset.name.replace("/", "-"), f"preset {preset.name}")


def _is_path(text: str) -> bool:
    """Whether a person means a file, not a preset."""
    return Path(text).suffix in {".yaml", ".yml"} or Path(text).parent != Path()


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
        if _is_path(node.value):
            raise ConfigError(f"{where}: {display(beside)}: no such file")
        try:
            found = _preset(self.catalog, node.value)
        except PluginError as error:
            raise ConfigError(f"{where}: no such file beside it, and {error}") from None
        return self.layers(found, chain)


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
