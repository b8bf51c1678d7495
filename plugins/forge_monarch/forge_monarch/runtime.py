"""Runtime ``monarch``: a replica is a mesh of processes with one actor in each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import ActorError, this_proc

from forge_core import ReplicaSpec
from forge_monarch.hosts import Hosts
from forge_monarch.mesh_owner import FailureSink, Owner, listen, unlisten
from forge_monarch.monarch_api import leave_at_exit
from forge_monarch.placement import hosts_of
from forge_monarch.processes import HALT_LIMIT, Processes
from forge_monarch.replica import MonarchReplica
from forge_monarch.settings import MonarchSettings

_runtimes = itertools.count()


class MonarchRuntime:
    """Replicas in processes of their own.

    Args:
        settings: which hosts there are, and which service lives where.
    """

    def __init__(self, settings: MonarchSettings) -> None:
        self._settings = settings
        self._name = f"forge{next(_runtimes)}"
        self._keys = itertools.count()
        self._hosts = Hosts(settings)
        self._owner: Any = None
        self._replicas: list[MonarchReplica] = []
        self._by_mesh: dict[str, MonarchReplica] = {}
        self._reports: set[asyncio.Task[None]] = set()

    async def spawn(self, spec: ReplicaSpec) -> MonarchReplica:
        """Start the processes of a replica and build its component in each.

        Raises:
            UsageError: no such host, or more processes than devices.
            RunFailed: a host cannot be reached.
            ReplicaDied: a process did not start, or died while it built the component.
            Exception: what the component's ``build`` raised.
        """
        names = hosts_of(self._settings, spec.name, spec.index, spec.placement.procs)
        if self._owner is None:
            listen(self._name, self._sink(asyncio.get_running_loop()))
            self._owner = this_proc().spawn("forge_owner", Owner, self._name)
            leave_at_exit()
        seat = await self._hosts.seat(names, spec, self._owner)
        processes = Processes(self._owner, str(next(self._keys)), seat, spec)
        try:
            ranks = await processes.start()
        except (SupervisionError, ActorError) as error:  # raised here, or reported to the owner
            death = await processes.death(str(error))
            await asyncio.shield(processes.end(kill=True))
            raise death from error
        except BaseException:
            await asyncio.shield(processes.end(kill=True))
            raise
        replica = MonarchReplica(ranks, processes)
        self._replicas.append(replica)
        self._by_mesh |= dict.fromkeys(processes.meshes, replica)
        return replica

    async def close(self) -> None:
        """End what no service has ended, and leave the hosts."""
        await asyncio.gather(
            *(replica.stop() for replica in self._replicas), return_exceptions=True
        )
        self._replicas.clear()
        await self._hosts.close()
        if self._owner is not None:
            with contextlib.suppress(TimeoutError):  # it may still wait for a host that is cut off
                async with asyncio.timeout(HALT_LIMIT):
                    await self._owner.stop()
            self._owner = None
            unlisten(self._name)

    def _sink(self, loop: asyncio.AbstractEventLoop) -> FailureSink:
        def failed(mesh: str, report: str) -> None:
            loop.call_soon_threadsafe(self._failed, mesh, report)

        return failed

    def _failed(self, mesh: str, report: str) -> None:
        # Each process also has a mesh of its logger, which fails with it and is none of ours.
        replica = self._by_mesh.get(mesh)
        if replica is not None:
            told = asyncio.ensure_future(replica.failed(report))
            self._reports.add(told)
            told.add_done_callback(self._reports.discard)
