"""The processes of one replica: started, set up, and ended whatever state they are in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import ActorError

from forge_core import ReplicaDied, ReplicaSpec
from forge_local.component_host import pickled
from forge_local.processes.logs import tail
from forge_local.rank import seen
from forge_monarch.actor_component import MonarchActor
from forge_monarch.exit_status import describe_end
from forge_monarch.failure_text import describe, failed_rank
from forge_monarch.hosts import Seat
from forge_monarch.rank import Boot, Facts, Rank
from forge_monarch.ranks import ActorRanks, ComponentRanks, Ranks, answer
from forge_monarch.settings import THIS_HOST

HALT_LIMIT = 5.0
"""Seconds the processes of a replica may take to end before they are killed."""

END_LIMIT = 0.5
"""Seconds in which it is known how a process ended that Monarch reports to have failed."""


class Processes:
    """Processes on a seat, as an owner's.

    Args:
        owner: mesh of the runtime's ``Owner``.
        key: what the owner knows them by.
        seat: the hosts they live on.
        spec: of the replica.
    """

    def __init__(self, owner: Any, key: str, seat: Seat, spec: ReplicaSpec) -> None:
        self._owner = owner
        self._key = key
        self._seat = seat
        self._spec = spec
        self._per_host = spec.placement.procs // len(seat.hosts)
        self._facts: list[Facts] = []
        self._end: asyncio.Task[ReplicaDied] | None = None
        self.label = f"replica {spec.index} of {spec.name}"
        self.meshes: list[str] = []
        """Names of the actor meshes, as failures name them."""

    async def start(self) -> Ranks:
        """Start them and build the component in each.

        Raises:
            SupervisionError, ActorError: one did not start.
            ReplicaDied: one died.
            Exception: what the component's ``build`` raised.
        """
        spec = self._spec
        await self._owner.start_procs.call_one(
            self._key,
            self._seat.mesh,
            self._per_host,
            f"{spec.name}{spec.index}",
            [host.python for host in self._seat.hosts],
        )
        actors = await self._spawn(Rank)
        boots = [self._boot(rank) for rank in range(len(actors))]
        self._facts = await asyncio.gather(
            *(
                _finished(actor.prepare.call_one(boot))
                for actor, boot in zip(actors, boots, strict=True)
            )
        )
        self._end = asyncio.ensure_future(self._first_end())
        one_host = len(self._seat.hosts) == 1
        address = "127.0.0.1" if one_host else self._seat.hosts[0].address
        port = self._facts[0].free_port
        building = asyncio.gather(*(answer(actor.build, address, port) for actor in actors))
        component, *_ = await self.unless_ended(building)
        if isinstance(component, MonarchActor):
            return ActorRanks(
                await self._spawn(component.actor, *component.args, **component.kwargs)
            )
        return ComponentRanks(actors)

    async def end(self, *, kill: bool) -> None:
        """End them; at once with ``kill``."""
        if self._end is not None:
            self._end.cancel()
        if kill:
            await self.kill()
        try:
            async with asyncio.timeout(HALT_LIMIT):
                await self._owner.halt.call_one(self._key)
        except (TimeoutError, ActorError, SupervisionError):
            pass  # a host that is cut off; its worker ends them when it misses us
        finally:
            # Also what a process that ended well has left behind.
            await self.kill()

    async def ended(self) -> ReplicaDied:
        """Wait until a process has ended, and say how."""
        assert self._end is not None
        return await asyncio.shield(self._end)

    async def death(self, report: str) -> ReplicaDied:
        """What a report of Monarch's comes to. The processes know better, if one has ended."""
        if self._end is not None:
            await asyncio.wait({self._end}, timeout=END_LIMIT)
            if self._end.done():
                return self._end.result()
        return self._dead(failed_rank(report) or 0, describe(report))

    async def unless_ended(self, work: asyncio.Future[Any]) -> Any:
        """The result of ``work``, unless a process ends before.

        Raises:
            ReplicaDied: one has ended.
        """
        assert self._end is not None
        try:
            await asyncio.wait({work, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise self._end.result()
        finally:
            work.cancel()
            work.add_done_callback(seen)

    async def _first_end(self) -> ReplicaDied:
        """Monarch's own word of an end may come late: it asks processes whether they live, and
        where one dies with such a question open, it waits for an answer as if that one hung."""
        watches = {
            asyncio.ensure_future(host.first_end([facts.end for facts in self._on_host(index)])): (
                index * self._per_host
            )
            for index, host in enumerate(self._seat.hosts)
        }
        try:
            left = set(watches)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for watch in done:
                    if watch.exception() is None:
                        rank, code = watch.result()
                        return self._dead(watches[watch] + rank, describe_end(code))
            # The hosts themselves are lost, which is Monarch's to report.
            return await asyncio.Future()
        finally:
            for watch in watches:
                watch.cancel()

    async def kill(self) -> None:
        """Kill them with all that they have started. Safe on processes that are gone."""
        for index, host in enumerate(self._seat.hosts):
            with contextlib.suppress(TimeoutError):
                await host.kill([facts.pid for facts in self._on_host(index)])

    def _dead(self, rank: int, how: str) -> ReplicaDied:
        named = self.label if len(self._facts) <= 1 else f"rank {rank} of {self.label}"
        process = f" (process {self._facts[rank].pid}{self._where(rank)})" if self._facts else ""
        log = self._log(rank)
        if log is None or not log.is_file():
            return ReplicaDied(f"{named}{process} {how}")
        return ReplicaDied(
            f"{named}{process} {how}; its log: {log}",
            log_tail=tail(log),
        )

    async def _spawn(self, actor: type[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Spawn an actor in each process; a handle on each, in order of rank."""
        mesh, name = await self._owner.start_actors.call_one(self._key, actor, args, kwargs)
        self.meshes.append(name)
        flat = mesh.flatten("rank")
        return [flat.slice(rank=rank) for rank in range(self._spec.placement.procs)]

    def _boot(self, rank: int) -> Boot:
        env = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        devices = self._seat.devices[rank // self._per_host]
        if devices:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        log = self._log(rank)
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            with log.open("a") as file:
                where = self._where(rank)
                file.write(f"--- rank {rank} of {self.label}{where}: started {when}\n")
        return Boot(
            rank=rank,
            local_rank=rank % self._per_host,
            local_world_size=self._per_host,
            env=env,
            path=tuple(sys.path),
            log=None if log is None else str(log),
            spec=pickled(self._spec, self._spec),
        )

    def _where(self, rank: int) -> str:
        host = self._seat.hosts[rank // self._per_host].name
        return "" if host == THIS_HOST else f" on host {host}"

    def _on_host(self, index: int) -> list[Facts]:
        first = index * self._per_host
        return self._facts[first : first + self._per_host]

    def _log(self, rank: int) -> Path | None:
        folder = self._spec.context.logs
        return folder and folder / f"{self._spec.name}-{self._spec.index}-rank{rank}.log"


async def _finished(future: Any) -> Any:
    """Monarch's futures can be awaited, but are no coroutines."""
    return await future
