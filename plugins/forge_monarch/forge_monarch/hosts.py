"""The hosts of a runtime: reached once, asked what they have, and rid of processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from monarch.actor import this_host

from forge_core import UsageError
from forge_monarch.settings import MonarchSettings


class Host(Protocol):
    """One machine.

    Attributes:
        name: in the config.
        address: where other hosts reach it.
        devices: ids of its GPUs that no process has.
    """

    name: str
    address: str
    devices: list[str]

    async def kill(self, groups: Sequence[int]) -> None:
        """Kill process groups."""
        ...


@dataclass
class Seat:
    """Where the processes of one replica live.

    Args:
        mesh: of its hosts.
        hosts: in order of rank.
        devices: for each host, the environment variables that show its processes their devices.
    """

    mesh: Any
    hosts: Sequence[Host]
    devices: Sequence[Mapping[str, str]]
    taken: list[tuple[Host, list[str]]] = field(default_factory=list)

    def leave(self) -> None:
        """Give the devices back."""
        while self.taken:
            host, devices = self.taken.pop()
            host.devices[:0] = devices


class ThisHost:
    """The controller's machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = "127.0.0.1"
        self.devices = visible_devices()

    async def kill(self, groups: Sequence[int]) -> None:
        kill_groups(groups)


class Hosts:
    """All hosts of a runtime, by name."""

    def __init__(self, settings: MonarchSettings) -> None:
        self._settings = settings
        self._hosts: dict[str, Host] = {}

    async def seat(self, names: Sequence[str], procs: int, *, with_gpus: bool) -> Seat:
        """Take a place for a replica of ``procs`` processes.

        Raises:
            UsageError: more processes than devices.
            RunFailed: a host cannot be reached.
        """
        await self._connect()
        hosts = [self._hosts[name] for name in names]
        per_host = procs // len(hosts)
        devices: list[dict[str, str]] = [{} for _ in hosts]
        seat = Seat(mesh=this_host(), hosts=hosts, devices=devices)
        if with_gpus:
            for host in hosts:
                if len(host.devices) < per_host:
                    raise UsageError(
                        f"host {host.name!r} has {len(host.devices)} free GPUs, but {per_host} "
                        "processes are to have one each (with_gpus)"
                    )
            for index, host in enumerate(hosts):
                taken, host.devices = host.devices[:per_host], host.devices[per_host:]
                seat.taken.append((host, taken))
                devices[index] = {"CUDA_VISIBLE_DEVICES": ",".join(taken)}
        return seat

    async def _connect(self) -> None:
        if not self._hosts:
            for name in self._settings.host_names():
                self._hosts[name] = ThisHost(name)

    async def close(self) -> None:
        """Leave the hosts."""


def visible_devices() -> list[str]:
    """Ids of this machine's GPUs, as CUDA_VISIBLE_DEVICES takes them."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return [device for device in shown.split(",") if device]
    with contextlib.suppress(FileNotFoundError):
        return [str(n) for n in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    return []


def kill_groups(groups: Sequence[int]) -> None:
    """Kill processes of this machine with all that they have started: each leads a group."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
