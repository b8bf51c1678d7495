"""The hosts of a runtime: reached once, asked what they have, and rid of processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import ActorError, attach_to_workers, enable_transport, this_host
from monarch.config import configure

from forge_core import ForgeError, ReplicaSpec, RunFailed, UsageError
from forge_local.devices import DeviceTable
from forge_local.processes.child import Child
from forge_monarch.addresses import knock, own_address, scheme_of, split
from forge_monarch.exit_status import first_end, kill_groups
from forge_monarch.host_agent import HostAgent, HostFacts
from forge_monarch.jobs import MESH, job_of
from forge_monarch.placement import check_services
from forge_monarch.settings import THIS_HOST, MonarchSettings, TlsFiles
from forge_monarch.tls import check_certificate, client_context

LISTEN_LIMIT = 10.0
"""Seconds a worker may take to listen, as one that was started with the run."""

CONNECT_LIMIT = 30.0
"""Seconds a host may take to answer for the first time."""

ANSWER_LIMIT = 3.0
"""Seconds a host may take to answer later, to kill processes, or to be left; one that is cut off
never does."""

RETURN_LIMIT = 3600.0
"""Seconds in which a host that was cut off may come back: Monarch does not connect again to an
address that it has once given up, by default after 30 s."""

TRUST = "trust_all_connections"


class Host:
    """One machine.

    Args:
        name: in the config.
        address: where other hosts reach it.
        facts: what it says of itself.
        mesh: Monarch's.
        agent: our actor there; None on the controller's machine.
    """

    def __init__(
        self, name: str, address: str, facts: HostFacts, mesh: Any, agent: Any = None
    ) -> None:
        self.name = name
        self.address = address
        self.python = facts.python
        self.devices = DeviceTable(facts.devices)
        self.mesh = mesh
        self._agent = agent
        self._silent = False

    async def answers(self) -> bool:
        """Whether it can be reached."""
        if self._agent is not None:
            try:
                async with asyncio.timeout(ANSWER_LIMIT):
                    await self._agent.facts.call_one()
            except (TimeoutError, SupervisionError, ActorError):
                self._silent = True
                return False
        self._silent = False
        return True

    def joined(self, again: Host) -> None:
        """It was lost and has been reached again."""
        self.mesh, self._agent, self._silent = again.mesh, again._agent, False

    async def kill(self, groups: Sequence[int]) -> None:
        """Kill process groups, if the host can be reached; else it ends them itself
        (``end_orphans``)."""
        if self._agent is None:
            await kill_groups(groups)
        elif not self._silent:
            try:
                async with asyncio.timeout(ANSWER_LIMIT):
                    await self._agent.kill.call_one(groups)
            except (TimeoutError, SupervisionError, ActorError):
                self._silent = True

    async def first_end(self, names: Sequence[str]) -> tuple[int, int | None]:
        """See ``ends.first_end``."""
        if self._agent is None:
            return await first_end(names)
        end: tuple[int, int | None] = await self._agent.first_end.call_one(names)
        return end

    async def check_sees(self, folder: Path) -> None:
        """Raise ``RunFailed`` unless a folder of the controller's is there too."""
        if self._agent is not None and not await self._agent.sees.call_one(folder):
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
        self._reached: list[Host] = []
        """Those to leave, also where others could not be reached."""
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._spans: dict[tuple[str, ...], Any] = {}
        self._children: list[Child] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        scheduled = settings.slurm is not None or settings.kubernetes is not None
        self._job: Any = job_of(settings) if scheduled else None
        self._whole: Any = None
        """All hosts that a scheduler gave."""
        self._addresses: Mapping[str, str] = settings.hosts
        self._connections = itertools.count()
        if settings.host_names() != [THIS_HOST]:
            end_orphans(settings.hang_after)
            configure(message_delivery_timeout=f"{RETURN_LIMIT:.0f}s")
        self._tls = client_context(settings.tls) if settings.tls is not None else None
        if settings.hosts:
            _listen_towards(next(iter(settings.hosts.values())), settings.tls)

    async def seat(self, names: Sequence[str], spec: ReplicaSpec, owner: Any) -> Seat:
        """Take a place for a replica; one that is started again gets the same devices.

        Args:
            names: of the hosts it is meant for. Where such a host is down and the replica needs one
                host only, another of its service's hosts takes its place.
            spec: of the replica.
            owner: of the runtime.

        Raises:
            UsageError: more processes than devices, or a worker of other versions.
            RunFailed: a host cannot be reached, or does not see the run's folder.
        """
        async with self._connecting:
            if not self._hosts:
                await self._connect(spec, owner)
            there = {name: len(host.devices) for name, host in self._hosts.items()}
            check_services(self._settings, spec.context.services, there)
            hosts = await self._reachable(names, spec, owner)
        procs = spec.placement.procs // len(hosts)
        on_each = replace(spec, placement=replace(spec.placement, procs=procs))
        devices = [host.devices.assign(on_each) for host in hosts]
        return Seat(mesh=self._mesh(hosts), hosts=hosts, devices=devices)

    async def close(self) -> None:
        """Leave the hosts; end those that are played on this machine or were asked for."""
        await asyncio.gather(*(_leave(host.mesh) for host in self._reached))
        self._reached.clear()
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

    async def _reachable(self, names: Sequence[str], spec: ReplicaSpec, owner: Any) -> list[Host]:
        hosts = [self._hosts[name] for name in names]
        cut_off = [host.name for host in hosts if not await self._answers(host, owner)]
        if not cut_off:
            return hosts
        if len(hosts) == 1:
            allowed = self._settings.placement(spec.name).hosts or tuple(self._hosts)
            for name in allowed:
                if name not in names and await self._answers(self._hosts[name], owner):
                    return [self._hosts[name]]
        raise RunFailed(
            f"replica {spec.index} of {spec.name}: host {', '.join(cut_off)} does not answer"
        )

    async def _answers(self, host: Host, owner: Any) -> bool:
        """Whether it can be reached, if need be by a new connection: it was cut off and its worker
        has ended ours meanwhile, or the worker was started again."""
        address = self._settings.hosts.get(host.name)
        if address is not None and await knock(address, ANSWER_LIMIT, self._tls):
            return False
        if await host.answers():
            return True
        if address is None:
            return False
        try:
            again = await self._reach(host.name, self._attach([host.name]), owner)
        except ForgeError:
            return False
        host.joined(again)
        self._spans = {names: mesh for names, mesh in self._spans.items() if host.name not in names}
        return True

    def _mesh(self, hosts: Sequence[Host]) -> Any:
        if len(hosts) == 1:
            return hosts[0].mesh
        names = tuple(host.name for host in hosts)
        if self._whole is not None:
            first = list(self._hosts).index(names[0])
            if names != tuple(self._hosts)[first : first + len(names)]:
                raise UsageError(
                    f"runtime.services: a replica cannot span {', '.join(names)}: hosts of a "
                    "scheduler's job must follow each other"
                )
            return self._whole.slice(hosts=slice(first, first + len(names)))
        if names not in self._spans:
            self._spans[names] = self._attach(names)
        return self._spans[names]

    def _attach(self, names: Sequence[str]) -> Any:
        return attach_to_workers(workers=[self._addresses[name] for name in names], ca=TRUST)

    async def _connect(self, spec: ReplicaSpec, owner: Any) -> None:
        settings = self._settings
        names = settings.host_names()
        if names == [THIS_HOST]:
            here = Host(THIS_HOST, "127.0.0.1", HostFacts.here(), this_host())
            self._hosts = {THIS_HOST: here}
            return
        meshes: list[Any]
        if self._job is not None:
            state = await asyncio.to_thread(self._job.state, None)
            self._whole = getattr(state, MESH)
            meshes = [
                self._whole.slice(hosts=slice(index, index + 1)) for index in range(len(names))
            ]
        else:
            if settings.local_hosts:
                self._addresses = self._play_hosts()
            else:
                await asyncio.gather(*(self._listens(name) for name in names))
            meshes = [self._attach([name]) for name in names]
        reached = await asyncio.gather(
            *(self._reach(name, mesh, owner) for name, mesh in zip(names, meshes, strict=True)),
            return_exceptions=True,
        )
        self._reached = [host for host in reached if isinstance(host, Host)]
        for host in reached:
            if isinstance(host, BaseException):
                raise host
        logs = spec.context.logs
        if logs is not None:
            await asyncio.gather(*(host.check_sees(logs.parent) for host in self._reached))
        self._hosts = {host.name: host for host in self._reached}

    async def _listens(self, name: str) -> None:
        address = self._addresses[name]
        try:
            problem = await knock(address, LISTEN_LIMIT, self._tls)
        except UsageError as error:
            raise UsageError(f"runtime.hosts.{name}: {error}") from error
        if problem:
            raise self._unreachable(name, problem)

    async def _reach(self, name: str, mesh: Any, owner: Any) -> Host:
        key = f"host {name} {next(self._connections)}"
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                await owner.start_procs.call_one(key, mesh, 1, "agent")
                agents, _ = await owner.start_actors.call_one(key, HostAgent, (), {})
                agent = agents.flatten("rank").slice(rank=0)
                facts: HostFacts = await agent.facts.call_one()
        except TimeoutError as error:
            raise self._unreachable(name, f"no answer in {CONNECT_LIMIT:g} s") from error
        except (ActorError, SupervisionError) as error:
            raise self._unreachable(name, cause_of(error)) from error
        _check_fits(self._label(name), facts, self._settings.hang_after)
        address = self._addresses.get(name, "")
        reachable = split(address)[0] if scheme_of(address) in ("tls", "tcp") else facts.name
        return Host(name, reachable, facts, mesh, agent)

    def _unreachable(self, name: str, why: str) -> RunFailed:
        address = self._settings.hosts.get(name)
        if address is None:
            return RunFailed(f"{self._label(name)}: its worker does not serve ({why})")
        return RunFailed(
            f"{self._label(name)}: no worker answers at {address} ({why}); start one there with: "
            f"forge worker {address}{' --cert CERT --key KEY' if self._tls is not None else ''}"
        )

    def _label(self, name: str) -> str:
        return f"runtime.hosts.{name}" if name in self._settings.hosts else f"host {name!r}"

    def _play_hosts(self) -> dict[str, str]:
        """Start workers on this machine; name -> address."""
        self._folder = tempfile.TemporaryDirectory(prefix="forge-hosts-")
        addresses = {
            name: f"ipc://{self._folder.name}/{name}" for name in self._settings.host_names()
        }
        for address in addresses.values():
            child = Child("forge_monarch.host_worker", [address])
            child.channel.close()  # it needs to know no more
            self._children.append(child)
        return addresses


async def _leave(mesh: Any) -> None:
    """End what we have there; the worker goes on."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(ANSWER_LIMIT):
            await mesh.stop()


def end_orphans(after: float) -> None:
    """Have Monarch end processes whose controller has been silent for so many seconds.

    A controller sends word of itself twice a second, with the time until which it holds by its
    own clock; hosts look every ``after`` seconds.
    """
    configure(mesh_orphan_timeout=f"{round(after * 1000)}ms")


def cause_of(error: Exception) -> str:
    """What went wrong at the other end, in one line."""
    while isinstance(error, ActorError):
        error = error.exception
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def _check_fits(label: str, there: HostFacts, hang_after: float) -> None:
    """Refuse a worker that cannot work with this controller.

    Raises:
        UsageError: it has other versions, or another time.
    """
    here = HostFacts.here()
    other = {
        name: version
        for name, version in here.versions.items()
        if there.versions.get(name) != version
    }
    if other:
        theirs = ", ".join(f"{name} {there.versions.get(name, 'none')}" for name in other)
        ours = ", ".join(f"{name} {version}" for name, version in other.items())
        raise UsageError(
            f"{label}: its worker has {theirs}, the controller {ours}; install the same on both"
        )
    ahead = there.clock - time.time()
    if abs(ahead) > hang_after / 2:
        raise UsageError(
            f"{label}: its clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}; "
            f"set it: processes end when the controller's word is {hang_after:g} s old"
        )


def _listen_towards(address: str, files: TlsFiles | None) -> None:
    """Have Monarch listen where the hosts reach us; must come before its first use."""
    try:
        ours = own_address(address)
    except UsageError as error:
        raise UsageError(f"runtime.hosts: {error}") from error
    if files is not None:
        check_certificate(files, ours, where="runtime.tls")
    try:
        enable_transport(f"{scheme_of(address)}://{ours}:0")
    except RuntimeError as error:
        raise UsageError(
            "runtime.hosts: this process has used Monarch without hosts before, which cannot be "
            "changed; start a new one"
        ) from error
