"""What is the default because of where the two ends of the transport live."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from forge_core.config.defaults import default_transport
from forge_core.config.precedence import component_name
from forge_core.config.tree import Node, Table, plain
from forge_core.contracts.context import Placement
from forge_core.contracts.errors import PluginError
from forge_core.contracts.families import GeneratorComponent, Location, TrainerComponent
from forge_core.contracts.sections import PlacementKeys
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
    runtime = sections.get("runtime")
    local = not isinstance(runtime, Table) or component_name(runtime) == "local"
    ends = {
        section: _end(catalog, section, node)
        for section in ("trainer", "generator")
        if isinstance(node := sections.get(section), Table)
    }
    defaults: dict[str, Any] = {
        section: {"isolate": True} for section, end in ends.items() if end.location.isolate
    }
    together = local and not any(end.apart for end in ends.values())
    on_cuda = local and len(ends) == 2 and all(end.location.cuda for end in ends.values())
    if transport := default_transport(catalog, together=together, on_cuda=on_cuda):
        defaults["transport"] = {"use": transport.name}
    if local and len(ends) == 2 and _share_gpu(*ends.values()):
        for section, end in ends.items():
            if end.location.shared_gpu:  # settings go with the component that they are of
                own = {"use": end.component, **end.location.shared_gpu}
                defaults[section] = {**own, **defaults.get(section, {})}
    return defaults


@dataclass(frozen=True)
class _End:
    """An end of the transport: where its component is, whether outside the controller, and whether
    it has GPUs that the config gives to it alone."""

    component: str
    location: Location
    apart: bool
    own_gpus: bool
    chosen_gpus: bool


def _share_gpu(first: _End, second: _End) -> bool:
    """Whether both compute on the same GPU: the first, unless the config gives them others."""
    on_cuda = first.location.cuda and second.location.cuda
    apart = first.own_gpus and second.own_gpus
    return on_cuda and not apart and not (first.chosen_gpus or second.chosen_gpus)


def _end(catalog: Catalog, section: str, node: Table) -> _End:
    values = plain(node)
    location = Location()
    with suppress(PluginError, ValidationError):
        component = catalog.get(section, component_name(node) or "")
        if (
            isinstance(component, GeneratorComponent | TrainerComponent)
            and component.location is not None
        ):
            kernel = KERNEL_KEYS[section].model_fields
            own = {key: value for key, value in values.items() if key not in {"use", *kernel}}
            location = component.location(component.settings.model_validate(own))
    given = {key: values[key] for key in PlacementKeys.model_fields if key in values}
    placement = Placement()
    with suppress(ValidationError):
        keys = PlacementKeys.model_validate({"isolate": location.isolate, **given})
        placement = Placement(**dict(keys))
    return _End(
        component_name(node) or "",
        location,
        apart=location.own_process or placement.own_processes,
        own_gpus=placement.with_gpus,
        chosen_gpus="CUDA_VISIBLE_DEVICES" in placement.env,
    )
