"""One life of a replica: from the moment it was spawned until it dies or is stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from forge_core import Replica, ReplicaDied
from forge_services.deadline import DeadlineExceeded, await_within


class LiveReplica:
    """A spawned replica whose calls end when it dies, whatever its runtime does about them.

    Attributes:
        index: of the replica in its service.
        component: for messages, such as ``generator torch``.
        in_flight: calls a service has given it.
        sessions: sessions pinned to it.
        cause: why it died; None while it lives.
    """

    def __init__(
        self, index: int, replica: Replica, component: str, deadline: float | None = None
    ) -> None:
        self.index = index
        self.component = component
        self.in_flight = 0
        self.sessions = 0
        self.cause: str | None = None
        self._replica = replica
        self._deadline = deadline
        self._scopes: set[asyncio.Timeout] = set()

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method; no task is made, so that a debugger steps into a local component.

        Raises:
            ReplicaDied: it was dead, or died or passed the deadline before it answered.
        """
        if self.cause is not None:
            raise ReplicaDied(self.cause, replica=self.index)
        # A timeout without a deadline: ``die`` moves it to now, which cancels just this call.
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                return await self._call(method, args, kwargs)
        except TimeoutError:
            if not scope.expired():
                raise
            raise ReplicaDied(self.cause or "died", replica=self.index) from None
        except ReplicaDied as death:
            raise ReplicaDied(str(death), replica=self.index, log_tail=death.log_tail) from death
        except Exception as error:
            error.add_note(f"in {method}() on replica {self.index} of {self.component}")
            raise
        finally:
            self._scopes.discard(scope)

    async def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._deadline is None:
            return await self._replica.call(method, args, kwargs)
        try:
            return await await_within(
                self._deadline, lambda: self._replica.call(method, args, kwargs)
            )
        except DeadlineExceeded as error:
            raise ReplicaDied(
                f"it hangs: {error} from {method}() ({self.component.split()[0]}.deadline)"
            ) from error

    async def wait_dead(self) -> str:
        """Return the cause once the runtime notices that it is dead."""
        return await self._replica.wait_dead()

    def die(self, cause: str) -> None:
        """Mark it dead; every call in flight raises ``ReplicaDied``."""
        if self.cause is not None:
            return
        self.cause = cause
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)

    async def stop(self, limit: float) -> str | None:
        """Stop it, within ``limit`` seconds. Returns what went wrong with that, if anything did."""
        task = asyncio.ensure_future(self._replica.stop())
        await asyncio.wait({task}, timeout=limit)
        if not task.done():
            task.cancel()
            return f"replica {self.index} did not stop within {limit:g} s"
        if task.cancelled() or (error := task.exception()) is None:
            return None
        return f"replica {self.index} did not stop cleanly: {type(error).__name__}: {error}"
