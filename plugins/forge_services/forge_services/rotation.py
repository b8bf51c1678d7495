"""The replicas that take requests, and the calls that wait for a place on one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forge_core import ReplicaDied, RunFailed, ServiceOptions
from forge_services.metrics import Counters
from forge_services.replica import LiveReplica
from forge_services.routing import ROUTERS, RoutedCall


@dataclass(slots=True)
class _Waiter:
    """A routed call that waits for a place."""

    future: asyncio.Future[LiveReplica]
    call: RoutedCall
    pinned: LiveReplica | None


class Rotation:
    """Gives calls places on healthy replicas, ``concurrency`` on each, in order of arrival.

    Args:
        name: of the service.
        options: its routing and concurrency.
        counters: where waits are counted.
    """

    def __init__(self, name: str, options: ServiceOptions, counters: Counters) -> None:
        self.healthy: dict[int, LiveReplica] = {}
        self._name = name
        self._concurrency = options.concurrency
        self._routing = ROUTERS[options.routing]()
        self._counters = counters
        self._waiters: deque[_Waiter] = deque()
        self._admitted = asyncio.Event()  # something is healthy, or never will be
        self._over: Callable[[], RunFailed] | None = None

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return sum(not waiter.future.done() for waiter in self._waiters)

    @property
    def in_flight(self) -> int:
        """Calls that healthy replicas are working on."""
        return sum(live.in_flight for live in self.healthy.values())

    async def acquire(self, call: RoutedCall, pinned: LiveReplica | None) -> LiveReplica:
        """Reserve a place: on the session's replica, or where the router says.

        Raises:
            RunFailed: the service has ended.
            ReplicaDied: the session's replica is gone.
        """
        self.raise_if_over()
        if pinned is not None and pinned.cause is not None:
            raise self.session_lost(pinned)
        started = time.perf_counter()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), call, pinned)
        self._waiters.append(waiter)
        self._dispatch()
        try:
            live = await waiter.future
        except asyncio.CancelledError:
            # A place given in the same moment is given back.
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            raise
        self._counters.queue_wait += time.perf_counter() - started
        self._counters.dispatched += 1
        return live

    def release(self, live: LiveReplica) -> None:
        """Give a place back."""
        live.in_flight -= 1
        self._dispatch()

    async def until_healthy(self) -> None:
        """Wait until at least one replica takes requests.

        Raises:
            RunFailed: none does, and none will.
        """
        while not self.healthy:
            self.raise_if_over()
            self._admitted.clear()
            await self._admitted.wait()
        self.raise_if_over()

    def admit(self, live: LiveReplica) -> None:
        """Let a replica take requests."""
        self.healthy[live.index] = live
        self._admitted.set()
        self._dispatch()

    def remove(self, live: LiveReplica) -> None:
        """Take a dead replica out; calls that wait for it alone raise ``ReplicaDied``."""
        del self.healthy[live.index]
        for waiter in self._waiters:
            if waiter.pinned is live and not waiter.future.done():
                waiter.future.set_exception(self.session_lost(live))

    def end(self, over: Callable[[], RunFailed]) -> None:
        """Waiting calls, and every later one, get the error that ``over`` makes."""
        self._over = over
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(over())
        self._admitted.set()

    def raise_if_over(self) -> None:
        """Raise if the service has ended."""
        if self._over is not None:
            raise self._over()

    def session_lost(self, live: LiveReplica) -> ReplicaDied:
        """What calls of a session raise whose replica died."""
        return ReplicaDied(
            f"the session of {self._name!r} was on replica {live.index}, which died: {live.cause}; "
            "begin a new session",
            replica=live.index,
        )

    def _dispatch(self) -> None:
        """Give waiting calls to replicas with a free place, first come, first served."""
        kept: list[_Waiter] = []
        while self._waiters:
            waiter = self._waiters.popleft()
            if waiter.future.done():
                continue
            free = [live for live in self.healthy.values() if live.in_flight < self._concurrency]
            live = self._place(waiter, free)
            if live is not None:
                live.in_flight += 1
                waiter.future.set_result(live)
                continue
            kept.append(waiter)
            if not free:
                break  # those behind it have no chance either
        self._waiters.extendleft(reversed(kept))

    def _place(self, waiter: _Waiter, free: list[LiveReplica]) -> LiveReplica | None:
        if waiter.pinned is not None:
            return waiter.pinned if waiter.pinned in free else None
        return self._routing.choose(waiter.call, self.healthy, free) if free else None
