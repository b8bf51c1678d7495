"""The components that a config starts with: those that plugins say are the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_core.config.nested import put_back
from forge_core.sections import COMPONENT_MAPS, COMPONENT_SECTIONS

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog


def component_defaults(catalog: Catalog) -> dict[str, Any]:
    """Sections as a config has them when no layer says anything.

    The transport is not among them: it depends on where its ends live (``config.layout``). Other
    sections that share a family, such as ``reference``, select nothing by themselves.
    """
    found: dict[str, Any] = {}
    for section in (*COMPONENT_SECTIONS, *catalog.sections.added):
        family = catalog.sections.family(section)
        assert family is not None
        if section == catalog.sections.home(family) and section != "transport":
            for component in catalog.defaults(family):
                found[section] = {"use": component.name}
    for section, family in COMPONENT_MAPS.items():
        if names := sorted(component.name for component in catalog.defaults(family)):
            found[section] = {name: {} for name in names}
    return put_back(found)
