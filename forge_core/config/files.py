"""The sources that read files: what a run was asked for, and the preset of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.config.in_force import CONFIG, config_in_force
from forge_core.config.layers import Layer
from forge_core.config.precedence import merged_sections
from forge_core.config.sources import Source
from forge_core.config.tree import MOST_LEVELS, Leaf, Origin, Table, from_data, in_folder
from forge_core.config.yaml_source import display, load_file
from forge_core.contracts.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog


@dataclass(frozen=True)
class Located:
    """What a person named: the file behind it, its name as a run, and what to call its layer."""

    path: Path
    name: str
    layer: str = "file"


def locate(catalog: Catalog, source: str | Path) -> Located:
    """Find a preset by its name, a YAML file, or a run folder's config. Presets come first.

    Raises:
        ConfigError: there is no such thing, or the run folder's config is damaged.
    """
    if source in {entry.name for entry in catalog.presets()}:
        return _preset(catalog, str(source))
    path = Path(source).expanduser()
    if path.is_dir() and (path / CONFIG).is_file():
        path = config_in_force(path)
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


class Files(Source):
    """The file, preset or mapping that was asked for, over all that it extends."""

    fills = "source"

    def layers(self) -> list[Layer]:
        name, found = "run", list[Layer]()
        if isinstance(self.request.source, Mapping):
            tree = from_data(self.request.source, Origin("mapping", "mapping", ""))
            assert isinstance(tree, Table)
            found = [*self.extended(tree, Path.cwd()), self.checked(tree)]
        elif self.request.source is not None:
            located = locate(self.request.catalog, self.request.source)
            name, found = located.name, self.file(located)
        stem = Leaf(name, name, Origin("default", "", "name"))
        return [Layer({}, name=stem), *found]

    def file(self, found: Located, chain: tuple[Path, ...] = ()) -> list[Layer]:
        """A file over what it extends, lowest first."""
        path = found.path.resolve()
        if len(chain) >= MOST_LEVELS:
            raise ConfigError(f"{display(path)}: extends: more than {MOST_LEVELS} files in a row")
        if path in chain:
            circle = " -> ".join(map(display, (*chain[chain.index(path) :], path)))
            raise ConfigError(f"{display(path)}: extends itself: {circle}")
        tree = load_file(found.path, found.layer, self.request.environ)
        if found.layer == "file":  # a preset speaks of the files of the person who uses it
            tree = in_folder(tree, path.parent)
        return [*self.extended(tree, path.parent, (*chain, path)), self.checked(tree, path.parent)]

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
            return self.file(Located(beside, beside.stem), chain)
        if _is_path(node.value):
            raise ConfigError(f"{where}: {display(beside)}: no such file")
        try:
            found = _preset(self.request.catalog, node.value)
        except PluginError as error:
            raise ConfigError(f"{where}: no such file beside it, and {error}") from None
        return self.file(found, chain)


class ModelPreset(Files):
    """The preset of kind ``model`` that the layers above choose with ``model.name``."""

    fills = "model_preset"

    def layers(self) -> list[Layer]:
        model = merged_sections(self.above(), None, [], self.kinds).get("model")
        node = model.items.get("name") if isinstance(model, Table) else None
        name = node.value if isinstance(node, Leaf) else None
        if name not in {entry.name for entry in self.request.catalog.presets("model")}:
            return []
        path = self.request.catalog.preset(name, "model").path
        layers = self.file(Located(path, name, f"model preset {name}"))
        if any(layer.stages for layer in layers):
            self.problems.append(f"{display(path)}: stages: a model preset cannot have stages")
        return [Layer(layer.sections) for layer in layers]


def _preset(catalog: Catalog, name: str) -> Located:
    preset = catalog.preset(name)
    return Located(preset.path, preset.name.replace("/", "-"), f"preset {preset.name}")


def _is_path(text: str) -> bool:
    """Whether a person means a file, not a preset."""
    return Path(text).suffix in {".yaml", ".yml"} or Path(text).parent != Path()
