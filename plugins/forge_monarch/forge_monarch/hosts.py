"""The hosts of a runtime: reached once, asked what they have, and rid of processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from monarch.actor import this_host

from forge_core.runtimes.devices import DeviceTable, visible_devices
from forge_core.services.spec import ReplicaSpec
from forge_monarch.settings import MonarchSettings


class Host(Protocol):
    """One machine.

    Attributes:
        name: in the config.
        address: where other hosts reach it.
        devices: its GPUs.
    """

    name: str
    address: str
    devices: DeviceTable

    async def kill(self, groups: Sequence[int]) -> None:
        """Kill process groups."""
        ...


@dataclass(frozen=True)
class Seat:
    """Where the processes of one replica live.

    Args:
        mesh: of its hosts.
        hosts: in order of rank.
        devices: ids of the GPUs on each host that the replica's processes there see.
    """

    mesh: Any
    hosts: Sequence[Host]
    devices: Sequence[tuple[str, ...]]


class ThisHost:
    """The controller's machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = "127.0.0.1"
        self.devices = DeviceTable(visible_devices())

    async def kill(self, groups: Sequence[int]) -> None:
        kill_groups(groups)


class Hosts:
    """All hosts of a runtime, by name."""

    def __init__(self, settings: MonarchSettings) -> None:
        self._settings = settings
        self._hosts: dict[str, Host] = {}

    async def seat(self, names: Sequence[str], spec: ReplicaSpec) -> Seat:
        """Take a place for a replica; one that is started again gets the same devices.

        Raises:
            UsageError: more processes than devices.
            RunFailed: a host cannot be reached.
        """
        await self._connect()
        hosts = [self._hosts[name] for name in names]
        procs = spec.placement.procs // len(hosts)
        on_each = replace(spec, placement=replace(spec.placement, procs=procs))
        devices = [host.devices.assign(on_each) for host in hosts]
        return Seat(mesh=this_host(), hosts=hosts, devices=devices)

    async def _connect(self) -> None:
        if not self._hosts:
            for name in self._settings.host_names():
                self._hosts[name] = ThisHost(name)

    async def close(self) -> None:
        """Leave the hosts."""


def kill_groups(groups: Sequence[int]) -> None:
    """Kill processes of this machine with all that they have started: each leads a group."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
