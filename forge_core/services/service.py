"""Replicas of one component behind one handle: routing, sessions, health, retry, restart.

Written once, over the narrow ``Runtime`` interface (``forge_core.protocols``): spawn a replica,
call it, watch it die, stop it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from forge_core.component import BuildContext, Placement, Selection
from forge_core.errors import FanoutError, ForgeError, ReplicaDied, RunFailed
from forge_core.protocols import Runtime
from forge_core.services.metrics import Counters, Health, ReplicaStatus, ServiceStatus
from forge_core.services.replica import LiveReplica
from forge_core.services.spec import ReplicaSpec
from forge_core.watchdog import EventSink, Watchdog, caller

RestartHook = Callable[[LiveReplica], Awaitable[None]]

_pinned: ContextVar[Mapping[int, LiveReplica] | None] = ContextVar("pinned", default=None)
"""Replica of the open session for each service, by the service's id."""


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How a service treats its replicas.

    Args:
        concurrency: most calls in flight on a replica; more wait in order of arrival.
        retry: a call whose replica died is made again on another one, and dead replicas are
            started again. False for components whose state cannot be made again (trainers): a
            death fails the service.
        tries: most replicas a call is given to, in all.
        restarts: most restarts of a replica that answers no call between them.
        restart_delay: seconds before the second restart attempt in a row; doubles with each.
        outage_limit: seconds without a healthy replica after which the service fails. An engine
            with a large model takes minutes to start again.
        stop_limit: seconds a replica may take to stop.
    """

    concurrency: int = 1024
    retry: bool = True
    tries: int = 3
    restarts: int = 3
    restart_delay: float = 0.1
    outage_limit: float = 600.0
    stop_limit: float = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call on one replica of a fan-out; ``error`` is None when it succeeded."""

    replica: int
    value: Any = None
    error: Exception | None = None


class Method:
    """A method of the component, waiting for the adverb that says which replica is called."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on one replica: the session's inside a session, else the least loaded.

        Raises:
            RunFailed: no replica can answer, now or within the outage limit.
            ReplicaDied: the session's replica is gone.
            Exception: whatever the method raised; the replica lives on.
        """
        return await self._service._route(self._name, args, kwargs)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call it on all healthy replicas at once; results in the order of replicas.

        Does not queue behind routed calls, and is not retried.

        Raises:
            FanoutError: it failed on some; names each with its cause.
        """
        return await self._service._fanout(self._name, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(self._help())

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._help()}; there is no .{name}")

    def _help(self) -> str:
        call = f"{self._service.name}.{self._name}"
        return (
            f"say which replica: {call}.route(...) for one, {call}.fanout(...) for all, or "
            f"{call}.route(...) inside 'async with {self._service.name}.session()' for the same one"
        )


@dataclass(slots=True)
class _Slot:
    """A place for a replica, which may have several lives one after the other."""

    index: int
    health: Health = Health.UNINITIALIZED
    live: LiveReplica | None = None
    restarts: int = 0
    in_vain: int = 0
    """Restarts since it last answered a call."""
    cause: str = ""


@dataclass(slots=True)
class _Waiter:
    """A routed call that waits for a free replica."""

    future: asyncio.Future[LiveReplica]
    pinned: LiveReplica | None = field(default=None)


class Service:
    """A handle on replicas of one component; make it with ``start``.

    ``service.<method>.route(...)`` and ``.fanout(...)`` call the component's methods;
    ``session()`` keeps calls on one replica.
    """

    def __init__(
        self,
        runtime: Runtime,
        selection: Selection[Any],
        context: BuildContext,
        *,
        name: str,
        placement: Placement,
        options: ServiceOptions,
        on_event: EventSink | None,
        watchdog: Watchdog | None,
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._selection = selection
        self._context = context
        self._placement = placement
        self._options = options
        self._on_event = on_event
        self._watchdog = watchdog
        self._slots = [_Slot(index) for index in range(placement.replicas)]
        self._healthy: dict[int, LiveReplica] = {}
        self._waiters: deque[_Waiter] = deque()
        self._admitted = asyncio.Event()  # something is healthy, or never will be
        self._outage: asyncio.TimerHandle | None = None
        self._hooks: dict[str, RestartHook] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._recoveries: set[asyncio.Task[None]] = set()
        self._counters = Counters()
        self._failure: str | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        runtime: Runtime,
        selection: Selection[Any],
        context: BuildContext,
        *,
        name: str,
        placement: Placement | None = None,
        options: ServiceOptions | None = None,
        on_event: EventSink | None = None,
        watchdog: Watchdog | None = None,
    ) -> Self:
        """Spawn all replicas and wait until they are built.

        Args:
            runtime: where they live.
            selection: the component.
            context: what it is built with; the replica's index is put in.
            name: what people read in errors and events.
            placement: how many replicas, of how many processes; default: one of one.
            options: limits and retries.
            on_event: told of ``replica_died``, ``replica_restarted``, ``replica_lost``, and
                ``service_failed``.
            watchdog: calls register in it.

        Raises:
            ForgeError: as raised by the component or the runtime.
            RunFailed: the component could not be built for any other reason.
        """
        service = cls(
            runtime,
            selection,
            context,
            name=name,
            placement=placement or Placement(),
            options=options or ServiceOptions(),
            on_event=on_event,
            watchdog=watchdog,
        )
        spawned = await asyncio.gather(
            *(service._spawn(slot.index) for slot in service._slots), return_exceptions=True
        )
        for live in spawned:
            if isinstance(live, LiveReplica):
                service._admit(live)
        for index, error in enumerate(spawned):
            if isinstance(error, BaseException):
                await service.close()
                if isinstance(error, ForgeError) or not isinstance(error, Exception):
                    raise error
                raise service._run_failed(
                    f"could not be built: {_describe(error)}", replica=index
                ) from error
        return service

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(self, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[int]:
        """Keep every ``route`` inside the block on one replica, the one with fewest sessions.

        Yields the replica's index. When that replica dies, calls raise ``ReplicaDied``; they never
        move on silently. The pin follows tasks started inside the block.
        """
        with self._waiting("a session"):
            await self.until_healthy()
        live = min(
            self._healthy.values(), key=lambda live: (live.sessions, live.in_flight, live.index)
        )
        live.sessions += 1
        token = _pinned.set({**(_pinned.get() or {}), id(self): live})
        try:
            yield live.index
        finally:
            _pinned.reset(token)
            live.sessions -= 1

    def on_restart(self, name: str, hook: RestartHook) -> None:
        """Have a restarted replica pass ``hook`` before it takes requests.

        A hook takes an earlier one's place under the same name; a replica that is just starting
        passes the new one as well. A hook that raises costs the replica one restart.
        """
        self._hooks[name] = hook

    def metrics(self) -> dict[str, float]:
        """Totals since the start (seconds for the means) and the load right now."""
        totals = self._counters
        return {
            "requests": totals.requests,
            "errors": totals.errors,
            "retries": totals.retries,
            "restarts": totals.restarts,
            "in_flight": sum(live.in_flight for live in self._healthy.values()),
            "queued": sum(not waiter.future.done() for waiter in self._waiters),
            "queue_wait_mean": totals.queue_wait / max(1, totals.dispatched),
            "latency_mean": totals.latency / max(1, totals.finished),
        }

    def status(self) -> ServiceStatus:
        """Health of the service and of each replica."""
        return ServiceStatus(
            self.name,
            self._health(),
            tuple(
                ReplicaStatus(
                    slot.index,
                    slot.health,
                    slot.live.in_flight if slot.live else 0,
                    slot.restarts,
                    slot.cause,
                )
                for slot in self._slots
            ),
        )

    async def close(self) -> None:
        """Stop every replica and refuse further calls. Safe to call twice and after a failure.

        Takes no longer than ``stop_limit``; what did not stop is told as event ``close_failed``.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    # Calls.

    async def _route(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pinned = (_pinned.get() or {}).get(id(self))
        retry = self._options.retry and pinned is None
        tries = self._options.tries if retry else 1
        self._counters.requests += 1
        with self._waiting(method):
            for attempt in range(1, tries + 1):
                live = await self._acquire(pinned)
                try:
                    return await self._timed(live, method, args, kwargs)
                except ReplicaDied as death:
                    self._died(live, str(death))
                    if pinned is not None:
                        raise self._session_lost(pinned) from death
                    if attempt == tries:
                        if self._closing is not None:
                            raise self._over() from death
                        times = "" if tries == 1 else f" on each of {tries} tries"
                        raise self._run_failed(
                            f"died in {method}(){times}: {death}", replica=live.index
                        ) from death
                    self._counters.retries += 1
                finally:
                    self._release(live)
        raise AssertionError("unreachable")

    async def _fanout(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        outcomes = await self.outcomes(method, *args, **kwargs)
        failures = {outcome.replica: outcome.error for outcome in outcomes if outcome.error}
        if failures:
            first = failures[min(failures)]
            raise FanoutError(f"{self.name}.{method}", dict(failures), len(outcomes)) from first
        return [outcome.value for outcome in outcomes]

    async def outcomes(self, method: str, *args: Any, **kwargs: Any) -> list[Outcome]:
        """A fan-out for those who handle failures one by one; in the order of replicas."""
        self._counters.requests += 1
        with self._waiting(method):
            await self.until_healthy()
            called = [self._healthy[index] for index in sorted(self._healthy)]
            if len(called) == 1:  # no task, for the debugger's sake
                return [await self._outcome(called[0], method, args, kwargs)]
            return await asyncio.gather(
                *(self._outcome(live, method, args, kwargs) for live in called)
            )

    def evict(self, index: int, cause: str) -> None:
        """Take a replica out of rotation as if it had died; it is started again."""
        live = self._healthy.get(index)
        if live is not None:
            self._died(live, cause)

    async def _outcome(
        self, live: LiveReplica, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        live.in_flight += 1
        try:
            return Outcome(live.index, value=await self._timed(live, method, args, kwargs))
        except ReplicaDied as death:
            self._died(live, str(death))
            return Outcome(live.index, error=death)
        except Exception as error:
            return Outcome(live.index, error=error)
        finally:
            self._release(live)

    async def _timed(
        self, live: LiveReplica, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        started = time.perf_counter()
        try:
            result = await live.call(method, *args, **kwargs)
        except Exception:
            self._counters.errors += 1
            raise
        self._counters.latency += time.perf_counter() - started
        self._counters.finished += 1
        self._slots[live.index].in_vain = 0
        return result

    def _waiting(self, what: str) -> AbstractContextManager[None]:
        if self._watchdog is None:
            return nullcontext()
        return self._watchdog.waiting(caller.get(), f"{self.name}.{what}")

    # Routing.

    async def _acquire(self, pinned: LiveReplica | None) -> LiveReplica:
        """Reserve a place on a replica, in order of arrival."""
        self._raise_if_over()
        if pinned is not None and pinned.cause is not None:
            raise self._session_lost(pinned)
        started = time.perf_counter()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), pinned)
        self._waiters.append(waiter)
        self._dispatch()
        try:
            live = await waiter.future
        except asyncio.CancelledError:
            # A place given in the same moment is given back.
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release(future.result())
            raise
        self._counters.queue_wait += time.perf_counter() - started
        self._counters.dispatched += 1
        return live

    def _release(self, live: LiveReplica) -> None:
        live.in_flight -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        """Give waiting calls to replicas with a free place, first come, first served."""
        kept: list[_Waiter] = []
        while self._waiters:
            waiter = self._waiters.popleft()
            if waiter.future.done():
                continue
            live = waiter.pinned or self._least_loaded()
            if live is not None and live.in_flight < self._options.concurrency:
                live.in_flight += 1
                waiter.future.set_result(live)
                continue
            kept.append(waiter)
            if waiter.pinned is None:
                break  # every replica is full: nobody behind has a chance either
        self._waiters.extendleft(reversed(kept))

    def _least_loaded(self) -> LiveReplica | None:
        return min(
            self._healthy.values(), key=lambda live: (live.in_flight, live.index), default=None
        )

    async def until_healthy(self) -> None:
        """Wait until at least one replica takes requests.

        Raises:
            RunFailed: none does, and none will.
        """
        while not self._healthy:
            self._raise_if_over()
            self._admitted.clear()
            await self._admitted.wait()
        self._raise_if_over()

    # Lives and deaths.

    async def _spawn(self, index: int) -> LiveReplica:
        spec = ReplicaSpec(
            name=self.name,
            index=index,
            placement=self._placement,
            selection=self._selection,
            context=self._context,
        )
        with self._waiting(f"replica {index} to start"):
            live = LiveReplica(index, await self._runtime.spawn(spec))
        watcher = asyncio.ensure_future(self._watch(live))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return live

    async def _watch(self, live: LiveReplica) -> None:
        try:
            cause = await live.wait_dead()
        except Exception as error:
            cause = f"its runtime cannot watch it: {_describe(error)}"
        self._died(live, cause)

    def _admit(self, live: LiveReplica) -> None:
        slot = self._slots[live.index]
        slot.live, slot.health = live, Health.HEALTHY
        self._healthy[live.index] = live
        if self._outage is not None:
            self._outage.cancel()
            self._outage = None
        self._admitted.set()
        self._dispatch()

    def _died(self, live: LiveReplica, cause: str) -> None:
        """Take a replica out of rotation, end its calls and start it again in the background."""
        if live.cause is not None:
            return
        live.die(cause)
        if self._healthy.get(live.index) is not live or self._closing or self._failure:
            return
        del self._healthy[live.index]
        slot = self._slots[live.index]
        slot.health, slot.cause = Health.RECOVERING, cause
        self._emit("replica_died", f"{self.name}: replica {live.index} died: {cause}", slot)
        for waiter in self._waiters:
            if waiter.pinned is live and not waiter.future.done():
                waiter.future.set_exception(self._session_lost(live))
        if not self._options.retry:
            self._lose(slot)
            return
        if not self._healthy:
            limit = self._options.outage_limit
            self._outage = asyncio.get_running_loop().call_later(
                limit, self._fail, f"no healthy replica for {limit:g} s"
            )
        recovery = asyncio.ensure_future(self._recover(slot, live))
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, slot: _Slot, dead: LiveReplica) -> None:
        """Replace a dead replica; it comes back only after it has passed every hook."""
        started = time.perf_counter()
        await self._stop(dead)
        delay = 0.0
        while slot.in_vain < self._options.restarts and self._failure is None:
            await asyncio.sleep(delay)
            delay = max(self._options.restart_delay, delay * 2)
            slot.restarts += 1
            slot.in_vain += 1
            self._counters.restarts += 1
            live = None
            try:
                live = await self._spawn(slot.index)
                await self._pass_hooks(live)
                self._raise_if_over()
            except asyncio.CancelledError:
                if live is not None:
                    slot.live = live  # for close() to stop
                raise
            except Exception as error:
                slot.cause = f"restart failed: {_describe(error)}"
                message = f"{self.name}: replica {slot.index} did not restart: {_describe(error)}"
                self._emit("replica_restart_failed", message, slot)
                if live is not None:
                    live.die(slot.cause)
                    await self._stop(live)
                continue
            self._admit(live)
            seconds = time.perf_counter() - started
            self._emit(
                "replica_restarted",
                f"{self.name}: replica {slot.index} is back after {seconds:.1f} s "
                f"(restart {slot.restarts})",
                slot,
                seconds=seconds,
            )
            return
        self._lose(slot)

    async def _pass_hooks(self, live: LiveReplica) -> None:
        """Until every hook, as it is registered in this moment, has been passed."""
        passed: dict[str, RestartHook] = {}
        while pending := {
            name: hook for name, hook in self._hooks.items() if passed.get(name) is not hook
        }:
            name, hook = next(iter(pending.items()))
            await hook(live)
            passed[name] = hook
        if live.cause is not None:
            raise ReplicaDied(live.cause, replica=live.index)

    def _lose(self, slot: _Slot) -> None:
        """Give a replica up; the service goes on with the others, if there are any."""
        slot.health = Health.UNHEALTHY
        self._emit("replica_lost", f"{self.name}: replica {slot.index} is given up", slot)
        left = {other.health for other in self._slots}
        if not self._options.retry or not left & {Health.HEALTHY, Health.RECOVERING}:
            self._fail("no replica is left")

    def _fail(self, reason: str) -> None:
        """End the service: whoever waits, and every later call, gets the one ``RunFailed``."""
        if self._failure is not None or self._closing:
            return
        causes = "; ".join(
            f"replica {slot.index}: {slot.cause}" for slot in self._slots if slot.cause
        )
        self._failure = f"{reason} ({causes})" if causes else reason
        self._emit("service_failed", f"{self.name}: {self._failure}")
        self._abandon_waiters()

    def _abandon_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(self._over())
        self._admitted.set()

    # The end.

    async def _close(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
        tasks = [*self._watchers, *self._recoveries]
        for task in tasks:
            task.cancel()
        self._healthy.clear()
        self._abandon_waiters()
        if tasks:
            await asyncio.wait(tasks, timeout=self._options.stop_limit)
        lives = [slot.live for slot in self._slots if slot.live is not None]
        for live in lives:
            live.die(f"service {self.name!r} was closed")
        await asyncio.gather(*(self._stop(live) for live in lives))
        for slot in self._slots:
            slot.health = Health.STOPPED

    async def _stop(self, live: LiveReplica) -> None:
        problem = await live.stop(self._options.stop_limit)
        if problem is not None:
            self._emit("close_failed", f"{self.name}: {problem}", self._slots[live.index])

    # Words.

    def _health(self) -> Health:
        if self._closing is not None:
            return Health.STOPPED
        if self._failure is not None:
            return Health.UNHEALTHY
        states = {slot.health for slot in self._slots}
        for health in (Health.HEALTHY, Health.RECOVERING, Health.UNHEALTHY):
            if health in states:
                return health
        return Health.UNINITIALIZED

    def _raise_if_over(self) -> None:
        if self._closing is not None or self._failure is not None:
            raise self._over()

    def _over(self) -> RunFailed:
        return self._run_failed(self._failure or f"service {self.name!r} is closed")

    def _run_failed(self, message: str, replica: int | None = None) -> RunFailed:
        component = f"{self._selection.family} {self._selection.name}"
        return RunFailed(message, component=component, replica=replica)

    def _session_lost(self, live: LiveReplica) -> ReplicaDied:
        return ReplicaDied(
            f"the session of {self.name!r} was on replica {live.index}, which died: {live.cause}; "
            "begin the session anew",
            replica=live.index,
        )

    def _emit(self, kind: str, message: str, slot: _Slot | None = None, **more: Any) -> None:
        if self._on_event is not None:
            data: dict[str, Any] = {"service": self.name, **more}
            if slot is not None:
                data |= {"replica": slot.index, "restarts": slot.restarts, "cause": slot.cause}
            self._on_event(kind, message, data)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
