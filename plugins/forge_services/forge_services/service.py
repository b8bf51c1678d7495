"""Replicas of one component behind one handle: routing, sessions, health, retry, restart.

Written once, over the narrow interface ``forge_core.Runtime``: spawn a replica,
call it, watch it die, stop it. Here is what happens to a call; ``rotation`` gives it a place,
``lives`` keeps the replicas alive.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Self

from forge_core import (
    BuildContext,
    FanoutError,
    Placement,
    ReplicaDied,
    ReplicaSpec,
    Runtime,
    Selection,
    ServiceOptions,
    StepResult,
)
from forge_services.answers import check_answer
from forge_services.method import Method
from forge_services.metrics import Counters, ServiceStatus
from forge_services.replica import LiveReplica
from forge_services.rotation import Rotation
from forge_services.routing import RoutedCall
from forge_services.supervisor import ReplicaSupervisor, RestartHook
from forge_services.watchdog import EventSink, Watchdog, caller

_pinned: ContextVar[Mapping[int, LiveReplica] | None] = ContextVar("pinned", default=None)
"""Replica of the open session for each service, by the service's id."""

_before: ContextVar[Mapping[int, LiveReplica] | None] = ContextVar("before", default=None)
"""Replica that took this task's last call, for each service whose routing asks, by its id."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call on one replica of a fan-out; ``error`` is None when it succeeded."""

    replica: int
    value: Any = None
    error: Exception | None = None


class Service:
    """A handle on replicas of one component; make it with ``start``.

    ``service.<method>.route(...)`` and ``.fanout(...)`` call the component's methods;
    ``session()`` keeps calls on one replica.
    """

    def __init__(
        self,
        runtime: Runtime,
        spec: ReplicaSpec,
        options: ServiceOptions,
        *,
        on_event: EventSink | None,
        watchdog: Watchdog | None,
    ) -> None:
        self.name = spec.name
        self._spec = spec
        self._options = options
        self._watchdog = watchdog
        self.answered: Counter[str] = Counter()
        """Method -> calls that were answered."""
        self.idle_steps = 0
        """Training steps among them that trained no token, so that no weight has changed."""
        self._counters = Counters()
        self._last_interval = Counters()
        self._rotation = Rotation(self.name, options, self._counters)
        self._supervisor = ReplicaSupervisor(
            runtime,
            spec,
            options,
            self._rotation,
            self._counters,
            waiting=self._waiting,
            on_event=on_event,
        )

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
            options: routing, limits and retries.
            on_event: called with ``replica_died``, ``replica_restarted``, ``replica_lost``, and
                ``service_failed``.
            watchdog: calls register in it.

        Raises:
            ForgeError: as raised by the component or the runtime.
            RunFailed: the component could not be built for any other reason.
        """
        spec = ReplicaSpec(
            name=name,
            index=0,
            placement=placement or Placement(),
            selection=selection,
            context=context,
        )
        service = cls(
            runtime, spec, options or ServiceOptions(), on_event=on_event, watchdog=watchdog
        )
        await service._supervisor.start()
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
            self._rotation.healthy.values(),
            key=lambda live: (live.sessions, live.in_flight, live.index),
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
        self._supervisor.hooks[name] = hook

    def evict(self, index: int, cause: str) -> None:
        """Take a replica out of rotation as if it had died; it is started again."""
        live = self._rotation.healthy.get(index)
        if live is not None:
            self._supervisor.died(live, cause)

    async def until_healthy(self) -> None:
        """Wait until at least one replica takes requests.

        Raises:
            RunFailed: none does, and none will.
        """
        await self._rotation.until_healthy()

    def metrics(self) -> dict[str, float]:
        """Totals since the start (seconds for the means) and the load right now."""
        totals = self._counters
        return {
            "requests": totals.requests,
            "errors": totals.errors,
            "retries": totals.retries,
            "restarts": totals.restarts,
            "in_flight": self._rotation.in_flight,
            "queued": self._rotation.queued,
            "queue_wait_mean": totals.queue_wait / max(1, totals.dispatched),
            "latency_mean": totals.latency / max(1, totals.finished),
        }

    def interval_metrics(self) -> dict[str, float]:
        """What happened since the last call: calls that were answered, retries, restarts, and the
        mean seconds that a call waited for a place and then for its answer."""
        now, before = self._counters, self._last_interval
        self._last_interval = replace(now)
        answered = now.finished - before.finished
        placed = now.dispatched - before.dispatched
        return {
            "calls": answered,
            "retries": now.retries - before.retries,
            "restarts": now.restarts - before.restarts,
            "queue_seconds": (now.queue_wait - before.queue_wait) / max(1, placed),
            "call_seconds": (now.latency - before.latency) / max(1, answered),
        }

    def status(self) -> ServiceStatus:
        """Health of the service and of each replica."""
        return self._supervisor.status()

    async def close(self) -> None:
        """Stop every replica and refuse further calls. Safe to call twice and after a failure.

        Takes no longer than ``stop_limit``; what did not stop is in event ``close_failed``.
        """
        await self._supervisor.close()

    # Calls.

    async def _route(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``service.<method>.route`` does."""
        pinned = (_pinned.get() or {}).get(id(self))
        retry = self._options.retry and pinned is None
        tries = self._options.tries if retry else 1
        self._counters.requests += 1
        with self._waiting(method):
            for attempt in range(1, tries + 1):
                live = await self._place(pinned, args)
                try:
                    return await self._timed(live, method, args, kwargs)
                except ReplicaDied as death:
                    self._supervisor.died(live, str(death), death.log_tail)
                    if pinned is not None:
                        raise self._rotation.session_lost(pinned) from death
                    if attempt == tries:
                        if self._supervisor.closing:
                            raise self._supervisor.over() from death
                        times = "" if tries == 1 else f" on each of {tries} tries"
                        raise self._supervisor.run_failed(
                            f"died in {method}(){times}: {death}",
                            replica=live.index,
                            log_tail=death.log_tail,
                        ) from death
                    self._counters.retries += 1
                finally:
                    self._rotation.release(live)
        raise AssertionError("unreachable")

    async def _fanout(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """What ``service.<method>.fanout`` does."""
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
            called = [live for _, live in sorted(self._rotation.healthy.items())]
            if len(called) == 1:  # no task, for the debugger's sake
                return [await self._outcome(called[0], method, args, kwargs)]
            return await asyncio.gather(
                *(self._outcome(live, method, args, kwargs) for live in called)
            )

    async def _place(self, pinned: LiveReplica | None, args: tuple[Any, ...]) -> LiveReplica:
        """Reserve a place for a routed call."""
        call = RoutedCall(args[0] if args else None, (_before.get() or {}).get(id(self)))
        live = await self._rotation.acquire(call, pinned)
        if self._options.routing == "sticky":
            _before.set({**(_before.get() or {}), id(self): live})
        return live

    async def _outcome(
        self, live: LiveReplica, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        live.in_flight += 1
        try:
            return Outcome(live.index, value=await self._timed(live, method, args, kwargs))
        except ReplicaDied as death:
            self._supervisor.died(live, str(death), death.log_tail)
            return Outcome(live.index, error=death)
        except Exception as error:
            return Outcome(live.index, error=error)
        finally:
            self._rotation.release(live)

    async def _timed(
        self, live: LiveReplica, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        started = time.perf_counter()
        try:
            result = await live.call(method, *args, **kwargs)
            check_answer(self._spec.selection, self._spec.context, method, args, result)
        except Exception:
            self._counters.errors += 1
            raise
        self._counters.latency += time.perf_counter() - started
        self._counters.finished += 1
        self.answered[method] += 1
        if isinstance(result, StepResult) and result.trained_tokens == 0:
            self.idle_steps += 1
        self._supervisor.answered(live)
        return result

    def _waiting(self, what: str) -> AbstractContextManager[None]:
        if self._watchdog is None:
            return nullcontext()
        return self._watchdog.waiting(caller.get(), f"{self.name}.{what}")
