"""One replica: processes of a mesh, called and ended together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError

from forge_core import ReplicaDied, RunFailed
from forge_local.rank_results import combined
from forge_monarch.processes import Processes
from forge_monarch.ranks import Ranks

CLOSE_LIMIT = 30.0
"""Seconds a component may take to close before its processes are killed. Only a hang takes
this long: on a busy machine an engine takes many seconds to close, and loses nothing by it."""


class MonarchReplica:
    """A component on a mesh.

    Args:
        ranks: to call.
        processes: that the ranks live in.
    """

    def __init__(self, ranks: Ranks, processes: Processes) -> None:
        self._ranks = ranks
        self._processes = processes
        self._numbers = itertools.count()
        self._death: asyncio.Future[ReplicaDied] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[None] | None = None
        self._watch = asyncio.ensure_future(self._await_end())

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method on every rank; the result is that of rank 0.

        Raises:
            ReplicaDied: a process is gone or hangs, or the replica was stopped.
            Exception: what the first rank raised that did.
        """
        if self._death.done():
            raise self._death.result()
        if self._stopping is not None:
            raise ReplicaDied(f"{self._processes.label} was stopped")
        number = next(self._numbers)
        calls = [self._or_death(call) for call in self._ranks.call(number, method, args, kwargs)]
        try:
            if len(calls) == 1:
                return await calls[0]
            return await self._on_all_ranks(calls, method)
        except ReplicaDied as death:
            self.die(death)
            raise
        except asyncio.CancelledError:
            self._ranks.cancel(number)
            raise

    async def _on_all_ranks(self, calls: Sequence[Coroutine[Any, Any, Any]], method: str) -> Any:
        answers = [asyncio.ensure_future(call) for call in calls]
        try:
            return await combined(answers, self._processes.label, method, self.die)
        finally:
            for answer in answers:
                answer.cancel()

    async def _or_death(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        except SupervisionError as error:
            await self.failed(str(error))
            raise self._death.result() from error

    async def _await_end(self) -> None:
        self.die(await self._processes.ended())

    async def failed(self, report: str) -> None:
        """Monarch reports that a process failed."""
        if not self._death.done():
            self.die(await self._processes.death(report))

    def die(self, death: ReplicaDied) -> None:
        """It is lost, so all its processes are: kill what is left. Only the first cause counts."""
        if not self._death.done():
            self._death.set_result(death)
            self._killing = asyncio.ensure_future(self._processes.kill())

    async def wait_dead(self) -> str:
        """Return the cause once it is dead."""
        return str(await asyncio.shield(self._death))

    async def stop(self) -> None:
        """Close the component and end the processes.

        Raises:
            RunFailed: the component did not close; its processes were killed.
            ReplicaDied: a process died while it closed.
            Exception: what its ``close`` raised.
        """
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._watch.cancel()
        closed = False
        try:
            if not self._death.done():
                await self._close()
                closed = True
        finally:
            await self._processes.end(kill=not closed)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_LIMIT) as limit:
                await self._processes.unless_ended(asyncio.gather(*self._ranks.close()))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RunFailed(
                f"{self._processes.label} did not close within {CLOSE_LIMIT:g} s"
            ) from error
        except SupervisionError as error:
            await self.failed(str(error))
            raise self._death.result() from error
