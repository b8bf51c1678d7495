"""Which hosts a replica takes; refuses what cannot work, before anything starts."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from forge_core import UsageError
from forge_monarch.settings import MonarchSettings

if TYPE_CHECKING:
    from forge_core.config.resolve import RunConfig

SERVICES = ("generator", "trainer", "reference")
"""Services of a run that have replicas in a runtime."""


def check_placement(config: RunConfig) -> None:
    """Check a resolved config's placement over hosts, as far as it is known without reaching them.

    Raises:
        UsageError: an unknown service or host, or processes that cannot be spread evenly.
    """
    settings = config.runtime.settings
    if not isinstance(settings, MonarchSettings):
        return
    check_services(settings)
    for stage in config.stages:
        hosts_of(settings, "trainer", 0, stage.trainer_placement.procs)
        hosts_of(settings, "generator", 0, stage.generator_placement.procs)
        hosts_of(settings, "reference", 0, stage.reference_placement.procs)


def check_services(settings: MonarchSettings) -> None:
    """Raise ``UsageError`` for a service that no run has."""
    for service in settings.services:
        if service not in SERVICES:
            raise UsageError(
                f"runtime.services.{service}: no such service; allowed: {', '.join(SERVICES)}"
                f"{_near(service, SERVICES)}"
            )


def hosts_of(settings: MonarchSettings, service: str, index: int, procs: int) -> list[str]:
    """Names of the hosts that a replica's processes are spread over, evenly and in order of rank.

    Raises:
        UsageError: a host that is not there, or processes that cannot be spread evenly.
    """
    known = settings.host_names()
    placement = settings.placement(service)
    key = f"runtime.services.{service}"
    for host in placement.hosts:
        if host not in known:
            raise UsageError(
                f"{key}.hosts: no host {host!r}; there are: {', '.join(known)}{_near(host, known)}"
            )
    names = list(placement.hosts) or known
    if placement.span > len(names):
        raise UsageError(
            f"{key}.span: {placement.span} hosts for each replica, but there are {len(names)}"
        )
    if procs % placement.span:
        raise UsageError(
            f"{key}.span: {procs} processes cannot be spread evenly over {placement.span} hosts"
        )
    first = index * placement.span
    return [names[(first + offset) % len(names)] for offset in range(placement.span)]


def _near(name: str, known: list[str] | tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
