"""One replica: processes of a mesh, called together and ended together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Protocol

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError

from forge_core import ReplicaDied
from forge_monarch.causes import describe
from forge_monarch.ranks import Ranks

GRACE = 5.0
"""Seconds that the other ranks get to end a call after one of them raised."""

CLOSE_LIMIT = 5.0
"""Seconds a component may take to close before its processes are killed."""


class End(Protocol):
    """Ends the processes of a replica."""

    def __call__(self, *, kill: bool) -> Awaitable[None]: ...


class MonarchReplica:
    """A component on a mesh.

    Args:
        ranks: to call.
        end: ends the processes, whatever state they are in, at once with ``kill=True``.
    """

    def __init__(self, ranks: Ranks, end: End) -> None:
        self._ranks = ranks
        self._end = end
        self._numbers = itertools.count()
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[None] | None = None

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method on every rank; the result is that of rank 0.

        Raises:
            ReplicaDied: a process is gone or hangs, or the replica was stopped.
            Exception: what the first rank to raise has raised. Ranks that do not come back within
                the grace that follows cost the replica its life.
        """
        if self._death.done():
            raise ReplicaDied(self._death.result())
        if self._stopping is not None:
            raise ReplicaDied("stopped")
        number = next(self._numbers)
        try:
            return await self._all_ranks(method, self._ranks.call(number, method, args, kwargs))
        except SupervisionError as error:
            self.die(describe(str(error)))
            raise ReplicaDied(self._death.result()) from error
        except ReplicaDied as death:
            self.die(str(death))
            raise
        except asyncio.CancelledError:
            self._ranks.cancel(number)
            raise

    async def _all_ranks(self, method: str, calls: Sequence[Coroutine[Any, Any, Any]]) -> Any:
        if len(calls) == 1:
            return await calls[0]
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            failed = [rank for rank, task in enumerate(tasks) if task in done and task.exception()]
            if not failed:
                return tasks[0].result()
            error = tasks[failed[0]].exception()
            assert error is not None
            if pending and not isinstance(error, SupervisionError | ReplicaDied):
                _, stuck = await asyncio.wait(pending, timeout=GRACE)
                if stuck:
                    ranks = ", ".join(str(tasks.index(task)) for task in stuck)
                    self.die(
                        f"rank {failed[0]} raised {type(error).__name__} in {method}() and rank "
                        f"{ranks} did not end the call within {GRACE:g} s"
                    )
            raise error
        finally:
            for task in tasks:
                task.cancel()

    def die(self, cause: str) -> None:
        """Note that it is dead; only the first cause counts."""
        if not self._death.done():
            self._death.set_result(cause)

    async def wait_dead(self) -> str:
        """Return the cause once it is dead."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """Close the component and end the processes.

        Raises:
            TimeoutError: the component did not close; its processes were killed.
            Exception: what its ``close`` raised.
        """
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        closed = False
        try:
            if not self._death.done():
                async with asyncio.timeout(CLOSE_LIMIT):
                    await asyncio.gather(*self._ranks.close())
                closed = True
        except SupervisionError as error:
            self.die(describe(str(error)))
        finally:
            await self._end(kill=not closed)
