"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_core import Command, Finding, RuntimeComponent, hookimpl
from forge_monarch.placement import check_placement, hosts
from forge_monarch.settings import TESTED, MonarchSettings

if TYPE_CHECKING:
    from forge_core import RunConfig


MONARCH = RuntimeComponent(
    name="monarch",
    settings=MonarchSettings,
    build="forge_monarch.monarch_api:build",
    hosts=hosts,
    fabric="monarch",
    summary="replicas in processes on one or many hosts, over Monarch's meshes",
)


@hookimpl
def forge_runtimes() -> Iterable[RuntimeComponent]:
    yield MONARCH


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_doctor.engines import Engine

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
