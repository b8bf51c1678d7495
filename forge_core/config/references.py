"""What ``use:`` may say beside a component's name: a function or class in a file, or the object.

Files are relative to the config that names them, and absolute from then on, so that the recorded
config of a run finds them from everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.config.tree import Leaf, Table
from forge_core.contracts.errors import PluginError
from forge_core.plugins.from_code import REFERENCE
from forge_core.sections import COMPONENT_MAPS

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog


def with_references(tree: Table, catalog: Catalog, folder: Path) -> Table:
    """A layer's tree in which every ``use`` is a name or the absolute reference to a file.

    Args:
        tree: as it was written.
        catalog: takes what is handed over in code.
        folder: that files are relative to.

    Raises:
        PluginError: an object that cannot be a component; names its key.
    """
    items = dict(tree.items)
    for key, node in tree.items.items():
        if not isinstance(node, Table):
            continue
        family = catalog.sections.family(key)
        if key == "stages":
            stages = {
                stage: with_references(child, catalog, folder)
                if isinstance(child, Table)
                else child
                for stage, child in node.items.items()
            }
            items[key] = replace(node, items=stages)
        elif family is not None:
            items[key] = _component(node, family, catalog, folder)
        elif key in COMPONENT_MAPS:
            parts = {
                part: _component(child, COMPONENT_MAPS[key], catalog, folder)
                if isinstance(child, Table)
                else child
                for part, child in node.items.items()
            }
            items[key] = replace(node, items=parts)
    return replace(tree, items=items)


def _component(node: Table, family: str, catalog: Catalog, folder: Path) -> Table:
    use = node.items.get("use")
    if not isinstance(use, Leaf) or use.unset or use.value is None:
        return node
    value = use.value
    if isinstance(value, str):
        match = REFERENCE.fullmatch(value)
        if match is None:
            return node
        path = (folder / Path(match["file"]).expanduser()).resolve()
        value = f"{path}:{match['name']}"
    elif isinstance(value, bool | int | float | list | tuple):
        return node
    else:
        try:
            value = catalog.hand_over(family, value)
        except PluginError as error:
            raise PluginError(f"{use.origin.where}: {use.origin.key}: {error}") from None
    return replace(node, items={**node.items, "use": replace(use, value=value)})
