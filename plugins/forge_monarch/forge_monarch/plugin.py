"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_core import BuildContext, Command, Finding, RuntimeComponent, hookimpl
from forge_monarch.placement import check_placement, hosts
from forge_monarch.settings import TESTED, MonarchSettings

if TYPE_CHECKING:
    from forge_core import RunConfig
    from forge_monarch.runtime import MonarchRuntime


def build_monarch(settings: MonarchSettings, context: BuildContext) -> MonarchRuntime:
    from forge_monarch.engine import load

    load(settings.hang_after, settings.tls)
    from forge_monarch.runtime import MonarchRuntime

    return MonarchRuntime(settings)


MONARCH = RuntimeComponent(
    name="monarch",
    settings=MonarchSettings,
    build=build_monarch,
    hosts=hosts,
    fabric="monarch",
    summary="replicas in processes on one or many hosts, over Monarch's meshes",
)


@hookimpl
def forge_runtimes() -> Iterable[RuntimeComponent]:
    yield MONARCH


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_core.doctor.engines import Engine

    yield Engine(plugin="forge-rl-monarch", tested=TESTED, package="torchmonarch").finding()


@hookimpl
def forge_commands() -> Iterable[Command]:
    yield Command(
        name="worker",
        target="forge_monarch.command:worker",
        summary="Make this machine a host that runs elsewhere can use.",
    )


@hookimpl
def forge_config_resolved(config: RunConfig) -> None:
    check_placement(config)
