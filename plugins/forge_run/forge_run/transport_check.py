"""Whether a stage's transport goes from its trainer to its generator, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import RuntimeComponent, TransportComponent, UsageError
from forge_core.config.reach import End, Layout

if TYPE_CHECKING:
    from forge_core import Runtime, Selection, StageConfig
    from forge_core.plugins.catalog import Catalog


def check_transport(stage: StageConfig, runtime: Selection[Runtime], catalog: Catalog) -> None:
    """The stage's transport goes from its trainer to its generator.

    Raises:
        UsageError: it does not reach so far, or not over this runtime; names what puts an end
            there, and a transport that reaches.
    """
    transport = stage.transport
    if transport is None:
        return
    component = transport.component
    assert isinstance(component, TransportComponent)
    layout = layout_of(stage, runtime)
    if layout.far_enough(component) and layout.connected(component):
        return
    if component.reach == "process":
        away = [key for end in layout.ends for key in end.away()]
        away = away if layout.in_process else ["runtime.use", *away]
        other = layout.instead(catalog)
        use = "a transport between processes" if other is None else f"--transport {other.name}"
        where = " on one host" if other is not None and other.reach == "host" else ""
        raise UsageError(
            f"transport.use: transport {transport.name!r} works within one process, and "
            f"{' and '.join(away)} put an end of it into another (stage {stage.name!r}); use "
            f"{use}{where}"
        )
    if not stage.samples():
        return  # nothing goes over it
    if not layout.far_enough(component):
        on = ", ".join(f"the {end.section} is on {', '.join(end.hosts)}" for end in layout.ends)
        other = layout.instead(catalog)
        such = "" if other is None else f", such as --transport {other.name}"
        raise UsageError(
            f"transport.use: transport {transport.name!r} works on one host, and {on} (stage "
            f"{stage.name!r}); use one that reaches several{such}, or place both on one host"
        )
    raise UsageError(_without_fabric(stage, component, layout, runtime, catalog))


def _without_fabric(
    stage: StageConfig,
    transport: TransportComponent,
    layout: Layout,
    runtime: Selection[Runtime],
    catalog: Catalog,
) -> str:
    """What to do where the runtime's processes are not connected as the transport needs it."""
    apart = " and ".join(end.section for end in layout.ends if end.away()) or "the stage"
    runtimes = [catalog.get("runtime", name) for name in catalog.names("runtime")]
    ways = [
        f"run with --runtime {each.name}"
        for each in runtimes
        if isinstance(each, RuntimeComponent) and each.fabric == transport.fabric
    ]
    if (other := layout.instead(catalog)) is not None:
        ways.append(f"--transport {other.name}")
    return (
        f"transport.use: transport {transport.name!r} does not reach the processes that {apart} "
        f"asks for on runtime {runtime.name!r} (stage {stage.name!r}); {', or '.join(ways)}"
    )


def layout_of(stage: StageConfig, runtime: Selection[Runtime]) -> Layout:
    """Where the ends of a stage's transport live.

    Raises:
        UsageError: the runtime has no such hosts.
    """
    component = runtime.component
    assert isinstance(component, RuntimeComponent)
    services = stage.placements()
    ends = [
        End(
            section=section,
            location=selection.location,
            placement=services[section],
            hosts=runtime.hosts(section, services[section]),
        )
        for section, selection in (("trainer", stage.trainer), ("generator", stage.generator))
        if selection is not None and section in services
    ]
    declared = stage.services()
    for name, service in declared.items():
        for end in (name, service.weights_from) if service.weights_from else ():
            chosen = stage.service_selection(declared[end]) if end in declared else None
            if chosen is not None:
                placement = stage.service_placement(declared[end])
                ends.append(
                    End(
                        section=f"service {end}",
                        location=chosen.location,
                        placement=placement,
                        hosts=runtime.hosts(end, placement),
                    )
                )
    return Layout(in_process=component.in_process, fabric=component.fabric, ends=tuple(ends))
