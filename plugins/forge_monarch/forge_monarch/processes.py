"""The processes of one replica: started, set up, and ended whatever state they are in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any

from forge_core.processes.frames import dumps
from forge_core.services.spec import ReplicaSpec
from forge_monarch.actor_component import MonarchActor
from forge_monarch.hosts import Seat
from forge_monarch.rank import Boot, Facts, Rank
from forge_monarch.ranks import ActorRanks, ComponentRanks, Ranks
from forge_monarch.wire import open_answer

HALT_LIMIT = 5.0
"""Seconds the processes of a replica may take to end before they are killed."""


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
        self._facts: list[Facts] = []
        self.meshes: list[str] = []
        """Names of the actor meshes, as failures are told of them."""

    async def start(self) -> Ranks:
        """Start them and build the component in each.

        Raises:
            SupervisionError: one did not start, or died.
            Exception: what the component's ``build`` raised.
        """
        spec, procs = self._spec, self._spec.placement.procs
        per_host = procs // len(self._seat.hosts)
        await self._owner.start_procs.call_one(
            self._key, self._seat.mesh, per_host, f"{spec.name}{spec.index}"
        )
        actors = await self._spawn(Rank)
        self._facts = await asyncio.gather(
            *(
                _resolve(actor.prepare.call_one(self._boot(rank, per_host)))
                for rank, actor in enumerate(actors)
            )
        )
        address, port = self._seat.hosts[0].address, self._facts[0].free_port
        if len(self._seat.hosts) == 1:
            address = "127.0.0.1"
        answers = await asyncio.gather(
            *(_resolve(actor.build.call_one(address, port)) for actor in actors)
        )
        component, *_ = [open_answer(answer) for answer in answers]
        if isinstance(component, MonarchActor):
            return ActorRanks(
                await self._spawn(component.actor, *component.args, **component.kwargs)
            )
        return ComponentRanks(actors)

    async def end(self, *, kill: bool) -> None:
        """End them, at once with ``kill``, and give their seat back."""
        if kill:
            await self._kill()
        try:
            async with asyncio.timeout(HALT_LIMIT):
                await self._owner.halt.call_one(self._key)
        except TimeoutError:
            pass
        finally:
            # Also what a process that ended well has left behind.
            await self._kill()
            self._seat.leave()

    async def _spawn(self, actor: type[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Spawn an actor in each process; a handle on each, in order of rank."""
        mesh, name = await self._owner.start_actors.call_one(self._key, actor, args, kwargs)
        self.meshes.append(name)
        flat = mesh.flatten("rank")
        return [flat.slice(rank=rank) for rank in range(self._spec.placement.procs)]

    def _boot(self, rank: int, per_host: int) -> Boot:
        spec = self._spec
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        devices = self._seat.devices[rank // per_host]
        log = None
        if spec.context.logs is not None:
            spec.context.logs.mkdir(exist_ok=True)
            log = str(spec.context.logs / f"{spec.name}-{spec.index}-rank{rank}.log")
        return Boot(
            rank=rank,
            local_rank=rank % per_host,
            local_world_size=per_host,
            env={"OMP_NUM_THREADS": threads, **devices, **spec.placement.env},
            path=tuple(sys.path),
            log=log,
            spec=dumps(spec),
        )

    async def _kill(self) -> None:
        per_host = max(1, len(self._facts) // len(self._seat.hosts))
        for index, host in enumerate(self._seat.hosts):
            ranks = self._facts[index * per_host : (index + 1) * per_host]
            with contextlib.suppress(TimeoutError):
                await host.kill([facts.pid for facts in ranks])


async def _resolve(future: Any) -> Any:
    """Monarch's futures can be awaited, but are no coroutines."""
    return await future
