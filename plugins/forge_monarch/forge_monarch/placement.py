"""Which hosts a replica takes; refuses what cannot work, before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from forge_core import Placement, UsageError
from forge_monarch.settings import MonarchSettings

if TYPE_CHECKING:
    from forge_core import RunConfig

SERVICES = {
    "generator": "no generator is installed",
    "trainer": "no trainer is installed",
    "reference": "no stage has a section reference; without one the trainer holds the reference",
    "rewards": "rewards live in the controller's process; reward_workers.isolate=true places them",
    "replay_buffer": "the replay buffer lives in the controller's process; "
    "replay_buffer.isolate=true places it",
}
"""Services that a run may have in a runtime, and why it has them not."""


def check_placement(config: RunConfig) -> None:
    """Check a resolved config's placement over hosts, as far as it is known without reaching them.

    Raises:
        UsageError: an unknown service or host, a service that no stage has, processes that cannot
            be spread evenly, or more of them than GPUs.
    """
    settings = config.runtime.settings
    if not isinstance(settings, MonarchSettings):
        return
    stages = [stage.placements() for stage in config.stages]
    for service in settings.services:
        if service not in SERVICES:
            raise UsageError(
                f"runtime.services.{service}: no such service; allowed: {', '.join(SERVICES)}"
                f"{_near(service, list(SERVICES))}"
            )
        if not any(service in stage for stage in stages):
            raise UsageError(f"runtime.services.{service}: {SERVICES[service]}")
    gpus = settings.gpus_per_host()
    there = {} if gpus is None else dict.fromkeys(settings.host_names(), gpus)
    for services in stages:
        check_services(settings, services, there)
    check_reach(settings)


def check_reach(settings: MonarchSettings) -> None:
    """Refuse hosts where anyone who reaches their port could run code.

    Raises:
        UsageError: an address without TLS that is not a loopback one, certificates that are
            missing, or a scheduler's network that is not said to be trusted.
    """
    if settings.hosts:
        from forge_monarch.tls import check_protected, client_context  # asyncio and ssl are slow

    for name, address in settings.hosts.items():
        give = "runtime.tls.cert and runtime.tls.key"
        check_protected(address, settings.tls, where=f"runtime.hosts.{name}", give=give)
    if settings.hosts and settings.tls is not None:
        client_context(settings.tls)
    if settings.tls is not None and not settings.hosts:
        raise UsageError("runtime.tls: is for runtime.hosts with tls:// addresses; there are none")
    for name in ("slurm", "kubernetes"):
        asked = getattr(settings, name)
        if asked is not None and not asked.trust_network:
            raise UsageError(
                f"runtime.{name}: anyone who reaches port {asked.port} of its workers could run "
                "code as you, for Monarch starts them without TLS; set "
                f"runtime.{name}.trust_network=true if only people you trust reach it, or start "
                "forge worker with tls:// addresses there and name them under runtime.hosts"
            )


def hosts(settings: MonarchSettings, service: str, placement: Placement) -> dict[str, str]:
    """Hosts that a service's replicas live on, and the machine of each.

    Raises:
        UsageError: a host that is not there, or processes that cannot be spread evenly.
    """
    return {
        host: settings.machine(host)
        for index in range(placement.replicas)
        for host in hosts_of(settings, service, index, placement.procs)
    }


def check_services(
    settings: MonarchSettings, services: Mapping[str, Placement], there: Mapping[str, int]
) -> None:
    """Every replica finds its hosts, and its GPUs on them.

    Args:
        settings: which service lives where.
        services: of a stage.
        there: host -> its GPUs; hosts of which that is not known yet are left out.

    Raises:
        UsageError: an unknown host, processes that cannot be spread evenly, or too few GPUs.
    """
    from forge_local.devices import check_devices  # imports asyncio, which is slow

    wanted: dict[str, Counter[str]] = {}
    for service, placement in services.items():
        for index in range(placement.replicas):
            hosts = hosts_of(settings, service, index, placement.procs)
            if placement.with_gpus:
                for host in hosts:
                    wanted.setdefault(host, Counter())[service] += placement.procs // len(hosts)
    for host, needed in wanted.items():
        if host in there:
            check_devices(f"host {host!r}", needed, there[host])


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


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
