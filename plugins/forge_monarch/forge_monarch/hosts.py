"""The hosts of a runtime: reached once, asked what they have, and rid of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import attach_to_workers, enable_transport, this_host

from forge_core import RunFailed, UsageError
from forge_core.processes.child import Child
from forge_core.runtimes.devices import DeviceTable, visible_devices
from forge_core.services.spec import ReplicaSpec
from forge_monarch.ends import first_end, kill_groups
from forge_monarch.jobs import MESH, job_of
from forge_monarch.settings import THIS_HOST, MonarchSettings
from forge_monarch.warden import Warden

CONNECT_LIMIT = 30.0
"""Seconds a host may take to answer for the first time."""

ANSWER_LIMIT = 3.0
"""Seconds a host may take to kill processes, or to be left; one that is cut off never does."""

TRUST = "trust_all_connections"


class Host:
    """One machine.

    Args:
        name: in the config.
        address: where other hosts reach it.
        mesh: Monarch's.
        devices: ids of its GPUs.
        python: Python's executable there.
        warden: our actor there; None on the controller's machine.
    """

    def __init__(
        self,
        name: str,
        address: str,
        mesh: Any,
        devices: Sequence[str],
        python: str,
        warden: Any = None,
    ) -> None:
        self.name = name
        self.address = address
        self.mesh = mesh
        self.devices = DeviceTable(devices)
        self.python = python
        self._warden = warden
        self._down = False

    async def answers(self) -> bool:
        """Whether it can be reached; one that could not once is not asked again."""
        if self._warden is None or self._down:
            return not self._down
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                await self._warden.devices.call_one()
        except (TimeoutError, SupervisionError):
            self._down = True
        return not self._down

    async def kill(self, groups: Sequence[int]) -> None:
        """Kill process groups, if the host can be reached."""
        if self._warden is None:
            await kill_groups(groups)
            return
        with contextlib.suppress(TimeoutError, SupervisionError):
            async with asyncio.timeout(ANSWER_LIMIT):
                await self._warden.kill.call_one(groups)

    async def first_end(self, names: Sequence[str]) -> tuple[int, int | None]:
        """See ``ends.first_end``."""
        if self._warden is None:
            return await first_end(names)
        end: tuple[int, int | None] = await self._warden.first_end.call_one(names)
        return end

    async def check_sees(self, folder: Path) -> None:
        """Raise ``RunFailed`` unless a folder of the controller's is there too."""
        if self._warden is not None and not await self._warden.sees.call_one(folder):
            raise RunFailed(
                f"host {self.name!r} does not see {folder}; put "
                "checkpointing.output_dir on storage that all hosts share"
            )


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


class Hosts:
    """All hosts of a runtime, by name.

    Made before Monarch is first used in the process: what it listens on depends on the hosts.

    Args:
        settings: of the runtime.
    """

    def __init__(self, settings: MonarchSettings) -> None:
        self._settings = settings
        self._hosts: dict[str, Host] = {}
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._spans: dict[tuple[str, ...], Any] = {}
        self._children: list[Child] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        scheduled = settings.slurm is not None or settings.kubernetes is not None
        self._job: Any = job_of(settings) if scheduled else None
        self._whole: Any = None
        """All hosts that a scheduler gave."""
        self._addresses: Mapping[str, str] = settings.hosts
        remote = [address for address in settings.hosts.values() if address.startswith("tcp://")]
        if remote:
            _speak_tcp(remote[0])

    async def seat(self, names: Sequence[str], spec: ReplicaSpec, owner: Any) -> Seat:
        """Take a place for a replica; one that is started again gets the same devices.

        Args:
            names: of the hosts it is meant for. Where such a host is down and the replica needs one
                host only, another of its service's hosts takes its place.
            spec: of the replica.
            owner: of the runtime.

        Raises:
            UsageError: more processes than devices.
            RunFailed: a host cannot be reached, or does not see the run's folder.
        """
        async with self._connecting:
            if not self._hosts:
                await self._connect(spec, owner)
        hosts = await self._reachable(names, spec)
        procs = spec.placement.procs // len(hosts)
        on_each = replace(spec, placement=replace(spec.placement, procs=procs))
        devices = [host.devices.assign(on_each) for host in hosts]
        return Seat(mesh=self._mesh(hosts), hosts=hosts, devices=devices)

    async def close(self) -> None:
        """Leave the hosts; end those that are played on this machine or were asked for."""
        meshes = [host.mesh for host in self._hosts.values() if host.name != THIS_HOST]
        for mesh in meshes:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(ANSWER_LIMIT):
                    await mesh.stop()
        self._hosts.clear()
        self._spans.clear()
        for child in self._children:
            await asyncio.to_thread(child.close)
        self._children.clear()
        if self._folder is not None:
            self._folder.cleanup()
        if self._job is not None:
            await asyncio.to_thread(self._job.kill)
            self._job = None

    async def _reachable(self, names: Sequence[str], spec: ReplicaSpec) -> list[Host]:
        hosts = [self._hosts[name] for name in names]
        cut_off = [host.name for host in hosts if not await host.answers()]
        if not cut_off:
            return hosts
        if len(hosts) == 1:
            allowed = self._settings.placement(spec.name).hosts or tuple(self._hosts)
            for host in map(self._hosts.__getitem__, allowed):
                if await host.answers():
                    return [host]
        raise RunFailed(
            f"replica {spec.index} of {spec.name}: host {', '.join(cut_off)} does not answer"
        )

    def _mesh(self, hosts: Sequence[Host]) -> Any:
        if len(hosts) == 1:
            return hosts[0].mesh
        names = tuple(host.name for host in hosts)
        if self._whole is not None:
            first = list(self._hosts).index(names[0])
            return self._whole.slice(hosts=slice(first, first + len(names)))
        if names not in self._spans:
            workers = [self._addresses[name] for name in names]
            self._spans[names] = attach_to_workers(workers=workers, ca=TRUST)
        return self._spans[names]

    async def _connect(self, spec: ReplicaSpec, owner: Any) -> None:
        settings = self._settings
        if settings.host_names() == [THIS_HOST]:
            here = Host(THIS_HOST, "127.0.0.1", this_host(), visible_devices(), sys.executable)
            self._hosts = {THIS_HOST: here}
            return
        meshes: dict[str, Any]
        if self._job is not None:
            state = await asyncio.to_thread(self._job.state, None)
            self._whole = getattr(state, MESH)
            meshes = {
                name: self._whole.slice(hosts=slice(index, index + 1))
                for index, name in enumerate(settings.host_names())
            }
        else:
            if settings.local_hosts:
                self._addresses = self._play_hosts()
            meshes = {
                name: attach_to_workers(workers=[address], ca=TRUST)
                for name, address in self._addresses.items()
            }
        connected = await asyncio.gather(
            *(self._reach(name, mesh, owner) for name, mesh in meshes.items())
        )
        logs = spec.context.logs
        if logs is not None:
            await asyncio.gather(*(host.check_sees(logs.parent) for host in connected))
        self._hosts = {host.name: host for host in connected}

    async def _reach(self, name: str, mesh: Any, owner: Any) -> Host:
        address = self._addresses.get(name, "")
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                key = f"host {name}"
                await owner.start_procs.call_one(key, mesh, 1, "warden")
                wardens, _ = await owner.start_actors.call_one(key, Warden, (), {})
                warden = wardens.flatten("rank").slice(rank=0)
                devices = await warden.devices.call_one()
                reachable = await warden.address.call_one()
                python = await warden.python.call_one()
        except Exception as error:
            raise RunFailed(
                f"runtime.hosts.{name}: no worker answers at {address or 'the job'}; start one "
                f"there with: forge worker {address}"
            ) from error
        if address.startswith("tcp://"):
            reachable = _split(address)[0]
        return Host(name, reachable, mesh, devices, python, warden)

    def _play_hosts(self) -> dict[str, str]:
        """Start workers on this machine; name -> address."""
        self._folder = tempfile.TemporaryDirectory(prefix="forge-hosts-")
        addresses = {
            name: f"ipc://{self._folder.name}/{name}" for name in self._settings.host_names()
        }
        for address in addresses.values():
            child = Child(
                "forge_monarch.worker",
                [address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None,
            )
            self._children.append(child)
        return addresses


def _speak_tcp(address: str) -> None:
    """Have Monarch listen where the hosts reach us; must come before its first use."""
    host, port = _split(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel says which of our addresses it would send from.
            probe.connect((host, port))
        except OSError as error:
            raise UsageError(
                f"runtime.hosts: no way to {address}: {os.strerror(error.errno or 0)}"
            ) from error
        ours: str = probe.getsockname()[0]
    try:
        enable_transport(f"tcp://{ours}:0")
    except RuntimeError as error:
        raise UsageError(
            "runtime.hosts: this process has used Monarch without hosts before, which cannot be "
            "changed; start a new one"
        ) from error


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)
