"""The components that a config starts with: those that plugins say are the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_core.contracts.families import TransportComponent
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
        if section == catalog.sections.family(section) and section != "transport":
            for component in catalog.defaults(section):
                found[section] = {"use": component.name}
    for section, family in COMPONENT_MAPS.items():
        if names := sorted(component.name for component in catalog.defaults(family)):
            found[section] = {name: {} for name in names}
    return found


def default_transport(
    catalog: Catalog, *, together: bool, on_cuda: bool
) -> TransportComponent | None:
    """The default transport with the narrowest reach that its ends are in.

    Args:
        catalog: the installed components.
        together: both ends live in the controller's process.
        on_cuda: both are on CUDA devices of this host.
    """
    for transport in catalog.defaults("transport"):
        assert isinstance(transport, TransportComponent)
        if (together or transport.reach != "process") and (on_cuda or not transport.cuda_only):
            return transport
    return None
