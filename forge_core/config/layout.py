"""What is the default because of where the two ends of the transport live."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from forge_core.config.precedence import component_name
from forge_core.config.reach import End, Layout
from forge_core.config.tree import Node, Table, plain
from forge_core.contracts.context import Placement
from forge_core.contracts.errors import ForgeError, PluginError
from forge_core.contracts.families import Location, RuntimeComponent
from forge_core.contracts.sections import PlacementKeys
from forge_core.contracts.selection import Selection
from forge_core.sections import KERNEL_KEYS

if TYPE_CHECKING:
    from forge_core.plugins.catalog import Catalog


def layout_defaults(catalog: Catalog, sections: Mapping[str, Node]) -> dict[str, Any]:
    """Sections as their defaults are for this layout of trainer and generator.

    A component that asks for a process of its own gets one. The transport is the default one with
    the narrowest reach that both ends are in. Where both compute on one GPU, each takes the share
    of it that its component says.

    Args:
        catalog: the installed components.
        sections: of a stage, merged, over all other defaults. What is wrong in them is left to
            those who parse them.
    """
    ends = {
        section: _end(catalog, section, node)
        for section in ("trainer", "generator")
        if isinstance(node := sections.get(section), Table)
    }
    layout = _layout(catalog, sections.get("runtime"), ends)
    defaults: dict[str, Any] = {
        section: {"isolate": True} for section, end in ends.items() if end.location.isolate
    }
    if transport := layout.default(catalog):
        defaults["transport"] = {"use": transport.name}
    if layout.on_cuda and _share_gpu(*ends.values()):
        for section, end in ends.items():
            if end.location.shared_gpu:  # settings go with the component that they are of
                node = sections[section]
                assert isinstance(node, Table)
                own = {"use": component_name(node) or "", **end.location.shared_gpu}
                defaults[section] = {**own, **defaults.get(section, {})}
    return defaults


def _share_gpu(first: End, second: End) -> bool:
    """Whether both compute on the same GPU: the first, unless the config gives them others."""
    apart = first.placement.with_gpus and second.placement.with_gpus
    chosen = any("CUDA_VISIBLE_DEVICES" in end.placement.env for end in (first, second))
    return not apart and not chosen


def _layout(catalog: Catalog, node: Node | None, ends: Mapping[str, End]) -> Layout:
    """What the runtime makes of the ends; its own defaults where its section cannot be parsed."""
    name = component_name(node) if isinstance(node, Table) else None
    component: object = None
    with suppress(PluginError):
        component = catalog.get("runtime", name or "")
    if not isinstance(component, RuntimeComponent):
        return Layout(in_process=True, fabric="", ends=tuple(ends.values()))
    assert isinstance(node, Table)
    placed = tuple(ends.values())
    with suppress(ForgeError, ValidationError):
        own = {key: value for key, value in plain(node).items() if key != "use"}
        runtime = Selection(
            family="runtime", component=component, settings=component.settings.model_validate(own)
        )
        placed = tuple(
            replace(end, hosts=runtime.hosts(section, end.placement))
            for section, end in ends.items()
        )
    return Layout(in_process=component.in_process, fabric=component.fabric, ends=placed)


def _end(catalog: Catalog, section: str, node: Table) -> End:
    values = plain(node)
    location = Location()
    with suppress(PluginError, ValidationError):
        component = catalog.get(section, component_name(node) or "")
        kernel = KERNEL_KEYS[section].model_fields
        own = {key: value for key, value in values.items() if key not in {"use", *kernel}}
        settings = component.settings.model_validate(own)
        location = Selection(family=section, component=component, settings=settings).location
    given = {key: values[key] for key in PlacementKeys.model_fields if key in values}
    placement = Placement()
    with suppress(ValidationError):
        keys = PlacementKeys.model_validate({"isolate": location.isolate, **given})
        placement = Placement(**dict(keys))
    return End(section=section, location=location, placement=placement)
