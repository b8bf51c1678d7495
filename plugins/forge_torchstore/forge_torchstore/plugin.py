"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_core import Finding, TransportComponent, UsageError, hookimpl
from forge_torchstore.settings import TESTED, TORCHSTORE

if TYPE_CHECKING:
    from forge_core import RunConfig


@hookimpl
def forge_transports() -> Iterable[TransportComponent]:
    yield TORCHSTORE


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_core.doctor.engines import Engine

    yield Engine(
        plugin="forge-rl-torchstore",
        tested=TESTED,
        package="torchstore",
        options="--no-deps",  # its metadata pins versions of torch and Monarch it does not need
    ).finding()


@hookimpl
def forge_config_resolved(config: RunConfig) -> None:
    """Refuse processes that are no part of a Monarch world before any is started."""
    if config.runtime.name != "local":
        return
    for stage in config.stages:
        if stage.transport is None or stage.transport.component is not TORCHSTORE:
            continue
        for section in ("trainer", "generator"):
            if getattr(stage, f"{section}_placement").own_processes:
                raise UsageError(
                    f"transport 'torchstore' does not reach the processes that {section} asks for "
                    "on runtime 'local'; run with --runtime monarch, or --transport shm"
                )
