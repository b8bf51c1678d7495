"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import Finding, TransportComponent, hookimpl
from forge_torchstore.checks import TESTED, check_installed
from forge_torchstore.settings import TorchStoreSettings

TORCHSTORE = TransportComponent(
    name="torchstore",
    settings=TorchStoreSettings,
    build="forge_torchstore.torchstore_api:build",
    check=check_installed,
    summary="TorchStore: sharded weights, between the processes of one host or several",
    reach="cluster",
    fabric="monarch",
    default=True,
)


@hookimpl
def forge_transports() -> Iterable[TransportComponent]:
    yield TORCHSTORE


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_doctor.engines import Engine

    yield Engine(
        plugin="forge-rl-torchstore",
        tested=TESTED,
        package="torchstore",
        options="--no-deps",  # its metadata pins versions of torch and Monarch it does not need
    ).finding()
