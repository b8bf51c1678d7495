"""Start a service's replicas, notice their deaths, restart them, give them up, stop them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from forge_core import ForgeError, ReplicaDied, ReplicaSpec, RunFailed, Runtime, ServiceOptions
from forge_core.contracts.blame import with_notes
from forge_services.metrics import Counters, Health, ReplicaStatus, ServiceStatus
from forge_services.replica import LiveReplica
from forge_services.rotation import Rotation
from forge_services.watchdog import EventSink

RestartHook = Callable[[LiveReplica], Awaitable[None]]


@dataclass(slots=True)
class _Slot:
    """A place for a replica, which may have several lives one after the other."""

    index: int
    health: Health = Health.UNINITIALIZED
    live: LiveReplica | None = None
    restarts: int = 0
    in_vain: int = 0  # restarts since its last answer
    cause: str = ""
    log_tail: Sequence[str] = ()


class ReplicaSupervisor:
    """Keeps as many replicas in rotation as the service has.

    Args:
        runtime: where they live.
        spec: of replica 0; the others differ in the index.
        options: limits and retries.
        rotation: where healthy replicas are admitted to.
        counters: where restarts are counted.
        waiting: registers a wait with the watchdog.
        on_event: called with what happens to replicas.
    """

    def __init__(
        self,
        runtime: Runtime,
        spec: ReplicaSpec,
        options: ServiceOptions,
        rotation: Rotation,
        counters: Counters,
        *,
        waiting: Callable[[str], AbstractContextManager[None]],
        on_event: EventSink | None,
    ) -> None:
        self.hooks: dict[str, RestartHook] = {}
        """What a restarted replica passes before it takes requests, by name."""
        self._runtime = runtime
        self._spec = spec
        self._options = options
        self._rotation = rotation
        self._counters = counters
        self._waiting = waiting
        self._on_event = on_event
        self._slots = [_Slot(index) for index in range(spec.placement.replicas)]
        self._outage: asyncio.TimerHandle | None = None
        self._watchers: set[asyncio.Task[None]] = set()
        self._recoveries: set[asyncio.Task[None]] = set()
        self._failure: str | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Spawn all replicas and wait until they are built; after a failure none is left.

        One that dies meanwhile is started again in the background, as at any later time.

        Raises:
            ForgeError: as raised by the component or the runtime.
            RunFailed: the component could not be built for any other reason, or all of them died.
        """
        spawned = await asyncio.gather(
            *(self._spawn(slot.index) for slot in self._slots), return_exceptions=True
        )
        for slot, result in zip(self._slots, spawned, strict=True):
            if isinstance(result, LiveReplica):
                slot.live = result
                if result.cause is None:
                    self._admit(result)
        try:
            for slot, result in zip(self._slots, spawned, strict=True):
                if isinstance(result, LiveReplica):
                    if result.cause is not None:  # while the others were being built
                        self._replace(slot, result.cause)
                elif isinstance(result, ReplicaDied) and self._options.retry:
                    self._replace(slot, str(result), result.log_tail)
                elif isinstance(result, ForgeError) or not isinstance(result, Exception):
                    raise result
                else:
                    raise self.run_failed(
                        f"could not be built: {with_notes(result)}", replica=slot.index
                    ) from result
            await self._rotation.until_healthy()
        except BaseException:
            await self.close()
            raise

    @property
    def closing(self) -> bool:
        """Whether ``close`` was called."""
        return self._closing is not None

    def answered(self, live: LiveReplica) -> None:
        """A replica has done some good: its earlier restarts do not count against it."""
        self._slots[live.index].in_vain = 0

    def died(self, live: LiveReplica, cause: str, log_tail: Sequence[str] = ()) -> None:
        """Take a replica out of rotation, end its calls and start it again in the background."""
        if live.cause is not None:
            return
        live.die(cause)
        if self._rotation.healthy.get(live.index) is not live or self._closing or self._failure:
            return
        self._rotation.remove(live)
        self._replace(self._slots[live.index], cause, log_tail)

    async def close(self) -> None:
        """Stop every replica. Safe to call twice and after a failure."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
            self._rotation.end(self.over)
        await asyncio.shield(self._closing)

    def status(self) -> ServiceStatus:
        """Health of the service and of each replica."""
        return ServiceStatus(
            self._name,
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

    def over(self) -> RunFailed:
        """What calls raise once the service has ended."""
        if self._failure is None:
            return self.run_failed(f"service {self._name!r} is closed")
        tails = (slot.log_tail for slot in self._slots if slot.log_tail)
        return self.run_failed(self._failure, log_tail=next(tails, ()))

    def run_failed(
        self, message: str, *, replica: int | None = None, log_tail: Sequence[str] = ()
    ) -> RunFailed:
        """A failure of the run by this component, with the log of the replica that died."""
        selection = self._spec.selection
        return RunFailed(
            message,
            component=f"{selection.family} {selection.name}",
            replica=replica,
            log_tail=log_tail,
        )

    # One life.

    @property
    def _name(self) -> str:
        return self._spec.name

    async def _spawn(self, index: int) -> LiveReplica:
        with self._waiting(f"replica {index} to start"):
            replica = await self._runtime.spawn(replace(self._spec, index=index))
        selection = self._spec.selection
        live = LiveReplica(
            index, replica, f"{selection.family} {selection.name}", self._options.deadline
        )
        watcher = asyncio.ensure_future(self._watch(live))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return live

    async def _watch(self, live: LiveReplica) -> None:
        try:
            cause = await live.wait_dead()
        except Exception as error:
            cause = f"its runtime cannot watch it: {with_notes(error)}"
        self.died(live, cause)

    def _admit(self, live: LiveReplica) -> None:
        slot = self._slots[live.index]
        slot.live, slot.health = live, Health.HEALTHY
        if self._outage is not None:
            self._outage.cancel()
            self._outage = None
        self._rotation.admit(live)

    def _replace(self, slot: _Slot, cause: str, log_tail: Sequence[str] = ()) -> None:
        """Tell of a death, and begin the replica's next life in the background."""
        slot.health, slot.cause, slot.log_tail = Health.RECOVERING, cause, log_tail
        self._emit("replica_died", f"{self._name}: replica {slot.index} died: {cause}", slot)
        if not self._options.retry:
            self._lose(slot)
            return
        if not self._rotation.healthy and self._outage is None:
            limit = self._options.outage_limit
            self._outage = asyncio.get_running_loop().call_later(
                limit, self._fail, f"no healthy replica for {limit:g} s"
            )
        recovery = asyncio.ensure_future(self._recover(slot))
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, slot: _Slot) -> None:
        """Start a replica again; it comes back only after it has passed every hook."""
        started = time.perf_counter()
        if slot.live is not None:
            await self._stop(slot.live)
        while slot.in_vain < self._options.restarts and self._failure is None:
            await asyncio.sleep(self._options.wait_before_restart(slot.in_vain))
            if self._failure is not None:
                return
            slot.restarts += 1
            slot.in_vain += 1
            self._counters.restarts += 1
            live = None
            try:
                live = slot.live = await self._spawn(slot.index)
                await self._pass_hooks(live)
                self._rotation.raise_if_over()
            except Exception as error:
                slot.cause = f"restart failed: {with_notes(error)}"
                slot.log_tail = error.log_tail if isinstance(error, ForgeError) else ()
                message = f"{self._name}: replica {slot.index} did not restart: {with_notes(error)}"
                if slot.in_vain < self._options.restarts:
                    wait = self._options.wait_before_restart(slot.in_vain)
                    message += f" (again in {wait:.1f} s)"
                self._emit("replica_restart_failed", message, slot)
                if live is not None:
                    live.die(slot.cause)
                    await self._stop(live)
                continue
            self._admit(live)
            seconds = time.perf_counter() - started
            self._emit(
                "replica_restarted",
                f"{self._name}: replica {slot.index} is back after {seconds:.1f} s "
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
            name: hook for name, hook in self.hooks.items() if passed.get(name) is not hook
        }:
            name, hook = next(iter(pending.items()))
            try:
                await hook(live)
            except ReplicaDied:
                raise
            except Exception:
                if self.hooks[name] is hook:
                    raise
                continue  # what it was to load has been dropped for what the newer one loads
            passed[name] = hook
        if live.cause is not None:
            raise ReplicaDied(live.cause, replica=live.index)

    def _lose(self, slot: _Slot) -> None:
        """Give a replica up; the service goes on with the others, if there are any."""
        slot.health = Health.UNHEALTHY
        self._emit("replica_lost", f"{self._name}: replica {slot.index} is given up", slot)
        left = {other.health for other in self._slots}
        if not self._options.retry or not left & {Health.HEALTHY, Health.RECOVERING}:
            self._fail("no replica is left")

    def _fail(self, reason: str) -> None:
        """End the service: waiting calls, and every later one, get the one ``RunFailed``."""
        if self._failure is not None or self._closing:
            return
        causes = "; ".join(
            f"replica {slot.index}: {slot.cause}" for slot in self._slots if slot.cause
        )
        self._failure = f"{reason} ({causes})" if causes else reason
        self._emit("service_failed", f"{self._name}: {self._failure}")
        self._rotation.end(self.over)

    # The end.

    async def _close(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
        tasks = [*self._watchers, *self._recoveries]
        for task in tasks:
            task.cancel()
        self._rotation.healthy.clear()
        if tasks:
            await asyncio.wait(tasks, timeout=self._options.stop_limit)
        lives = [slot.live for slot in self._slots if slot.live is not None]
        for live in lives:
            live.die(f"service {self._name!r} was closed")
        await asyncio.gather(*(self._stop(live) for live in lives))
        for slot in self._slots:
            slot.health = Health.STOPPED

    async def _stop(self, live: LiveReplica) -> None:
        problem = await live.stop(self._options.stop_limit)
        if problem is not None:
            self._emit("close_failed", f"{self._name}: {problem}", self._slots[live.index])

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

    def _emit(self, kind: str, message: str, slot: _Slot | None = None, **more: Any) -> None:
        if self._on_event is not None:
            data: dict[str, Any] = {"service": self._name, **more}
            if slot is not None:
                data |= {"replica": slot.index, "restarts": slot.restarts, "cause": slot.cause}
            self._on_event(kind, message, data)
