"""A replica whose ranks are processes of their own on this host; called and ended as one."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from typing import Any, Self

from forge_core import ReplicaDied, ReplicaSpec, RunFailed
from forge_local.component_host import pickled, rank_environment
from forge_local.processes.frames import dumps
from forge_local.rank import RankProcess, seen
from forge_local.rank_results import combined
from forge_local.wire import BUILDING, Kind, Message

STOP_LIMIT = 30.0
"""Seconds that ranks get to close their components before they are killed. Only a hang takes this
long: on a busy machine an engine takes many seconds to close, and loses nothing by it."""


class ProcessReplica:
    """A component on one or more ranks. A call is made on every rank; rank 0's result is returned.

    ``combined`` says which error a call ends with; where ranks are lost, all are killed.
    """

    def __init__(self, label: str, ranks: list[RankProcess]) -> None:
        self._label = label
        self._ranks = ranks
        self._numbers = itertools.count(BUILDING + 1)
        self._death: asyncio.Future[ReplicaDied] = asyncio.get_running_loop().create_future()
        self._stopping = False
        for rank in ranks:
            rank.death.add_done_callback(self._rank_died)

    @classmethod
    async def start(cls, spec: ReplicaSpec, devices: tuple[str, ...] = ()) -> Self:
        """Start the ranks and have each build its component.

        Args:
            spec: of the replica.
            devices: CUDA devices that the ranks see; empty: whatever this process sees.

        Raises:
            UsageError: the component cannot be sent to another process.
            ReplicaDied: a rank's process ended while it was building.
            Exception: what the first rank raised that could not be built.
        """
        label = f"replica {spec.index} of {spec.name}"
        procs = spec.placement.procs
        environment = {**_thread_environment(spec)}
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        port = _free_port()
        ranks: list[RankProcess] = []
        replica: Self | None = None
        try:
            for number in range(procs):
                log = spec.context.logs
                ranks.append(
                    RankProcess(
                        f"rank {number} of {label}" if procs > 1 else label,
                        pickled(spec, (spec, number)),
                        {**environment, **rank_environment(spec, number, "127.0.0.1", port)},
                        log / f"{spec.name}-{spec.index}-rank{number}.log" if log else None,
                    )
                )
            replica = cls(label, ranks)
            built: list[asyncio.Future[None]] = [
                asyncio.ensure_future(rank.start()) for rank in ranks
            ]
            for task in built:
                task.add_done_callback(seen)
            await replica._all(built, "building")
        except BaseException:
            for rank in ranks:
                rank.release()
            raise
        return replica

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method on every rank.

        Raises:
            ReplicaDied: a rank's process is gone, or goes before it has answered.
            Exception: what the first rank raised that did.
        """
        if self._stopping:
            raise ReplicaDied(f"{self._label} was stopped")
        number = next(self._numbers)
        try:
            body = dumps((method, args, kwargs))
        except Exception as error:
            raise TypeError(
                f"{method}: its arguments cannot be sent to another process: {error}"
            ) from error
        message = Message(Kind.CALL, number, body)
        try:
            return await self._all([rank.begin(message) for rank in self._ranks], method)
        finally:
            for rank in self._ranks:
                rank.abandon(number)

    async def wait_dead(self) -> str:
        """Return the cause once a rank is gone."""
        return str(await asyncio.shield(self._death))

    async def stop(self) -> None:
        """Have every rank close its component and end; kill what has not within ``STOP_LIMIT``.

        Raises:
            RunFailed: a rank had to be killed.
            Exception: what closing a component raised.
        """
        if self._stopping:
            return
        self._stopping = True
        number = next(self._numbers)
        try:
            if self._death.done():
                return
            answers = [rank.begin(Message(Kind.STOP, number)) for rank in self._ranks]
            ended: list[asyncio.Future[Any]] = [rank.death for rank in self._ranks]
            await asyncio.wait([*answers, *ended], timeout=STOP_LIMIT)
            for answer in answers:
                if answer.done():
                    answer.result()
            late = [rank.label for rank in self._ranks if not rank.death.done()]
            if late:
                raise RunFailed(f"{', '.join(late)} did not end within {STOP_LIMIT:g} s")
        finally:
            for rank in self._ranks:
                rank.release()

    async def _all(self, answers: list[asyncio.Future[Any]], doing: str) -> Any:
        return await combined(answers, self._label, doing, self._end)

    def _rank_died(self, death: asyncio.Future[ReplicaDied]) -> None:
        if not self._stopping:
            self._end(death.result())

    def _end(self, death: ReplicaDied) -> None:
        """One rank is lost, so all are: kill the others."""
        if self._death.done():
            return
        self._death.set_result(death)
        for rank in self._ranks:
            rank.kill(str(death))


def _thread_environment(spec: ReplicaSpec) -> dict[str, str]:
    """An even share of the cores for each process of the service, unless it is set.

    Where somebody did, and the threads are more than the cores, those that wait sleep: spinning,
    they take the cores from those they wait for.
    """
    processes = spec.placement.replicas * spec.placement.procs
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if processes == 1:
        return {}
    if not threads:
        return {"OMP_NUM_THREADS": str(max(1, cores // processes))}
    if "OMP_WAIT_POLICY" in os.environ or not threads.isdecimal():
        return {}
    return {"OMP_WAIT_POLICY": "passive"} if int(threads) * processes > cores else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
