"""A small component with faults on demand, and services of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    Component,
    DistributedSection,
    ModelSection,
    Placement,
    ReplicaDied,
    ReplicaSpec,
    Selection,
    ServiceOptions,
    Settings,
    TrainingSection,
    WeightManifest,
)
from forge_local.component_host import ComponentHost
from forge_local.runtime import LocalReplica, LocalRuntime
from forge_services import Service


class WorkerSettings(Settings):
    pass


class Worker:
    """Answers with its replica's index; each life writes into the site's journal."""

    def __init__(self, site: Site, replica: int) -> None:
        self.site = site
        self.replica = replica
        self.version = -1
        self.checksum = "none"
        self.gate = asyncio.Event()
        site.workers.append(self)

    def index(self) -> int:
        return self.replica

    async def slow_index(self, prompt: object) -> int:
        """Answers after others had time to be placed."""
        await asyncio.sleep(0)
        return self.replica

    async def held(self) -> int:
        """Answers once the gate is open."""
        self.site.journal.append(f"call {self.replica}")
        await self.gate.wait()
        return self.replica

    async def fail(self, *replicas: int) -> int:
        if self.replica in replicas:
            raise ValueError(f"no good on {self.replica}")
        return self.replica

    async def die(self, *replicas: int) -> int:
        if not replicas or self.replica in replicas:
            raise ReplicaDied("out of memory")
        return self.replica

    async def update_weights(self, manifest: WeightManifest) -> WeightManifest:
        await asyncio.sleep(0)
        self.site.journal.append(f"load {manifest.version} on {self.replica}")
        self.version = manifest.version
        self.checksum = self.site.wrong.get(self.replica, manifest.checksum)
        return WeightManifest(self.version, self.checksum, manifest.tensors, manifest.bytes)

    async def held_version(self) -> int:
        return self.version

    async def close(self) -> None:
        self.site.journal.append(f"close {self.replica}")
        await self.site.stop_delay()


class KillableReplica(LocalReplica):
    """Like a process: calls to a killed one hang, and only ``wait_dead`` tells."""

    def kill(self, cause: str) -> None:
        self._death.set_result(cause)

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._death.done():
            await asyncio.Event().wait()
        return await super().call(method, args, kwargs)


class Site(LocalRuntime):
    """The local runtime, with a journal and switches for what goes wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[Worker] = []
        self.replicas: list[KillableReplica] = []
        self.journal: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.wrong: dict[int, str] = {}
        self.unbuildable: set[int] = set()
        self.stillborn: list[int] = []
        """Each time one of these is spawned it dies, and is taken off the list."""
        self.first_through = -1
        """The replica that the gate does not hold up, once."""
        self.spawn_gate = asyncio.Event()
        self.spawn_gate.set()
        self.stop_seconds = 0.0

    async def stop_delay(self) -> None:
        await asyncio.sleep(self.stop_seconds)

    async def spawn(self, spec: ReplicaSpec) -> LocalReplica:
        if spec.index == self.first_through:
            self.first_through = -1
        else:
            await self.spawn_gate.wait()
        if spec.index in self.stillborn:
            self.stillborn.remove(spec.index)
            raise ReplicaDied("was killed by SIGSEGV", log_tail=["the last words"])
        await super().spawn(spec)
        replica = KillableReplica(ComponentHost(self.workers[-1], "worker"))
        self.replicas.append(replica)
        return replica

    def build(self, settings: WorkerSettings, context: BuildContext) -> Worker:
        if context.replica in self.unbuildable:
            raise OSError("no space left on device")
        return Worker(self, context.replica)

    @property
    def selection(self) -> Selection[Worker]:
        component = Component(
            name="worker", settings=WorkerSettings, build=self.build, summary="for tests"
        )
        return Selection(family="generator", component=component, settings=WorkerSettings())


@pytest.fixture
def context() -> BuildContext:
    return BuildContext(
        model=ModelSection(), training=TrainingSection(), distributed=DistributedSection()
    )


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def start(site: Site, context: BuildContext) -> AsyncIterator[Callable[..., Any]]:
    """``await start(replicas=2, tries=3, ...)``: service ``generator``, closed at the end."""
    services: list[Service] = []

    async def make(
        *, replicas: int = 1, procs: int = 1, watchdog: Any = None, **options: Any
    ) -> Service:
        service = await Service.start(
            site,
            site.selection,
            context,
            name="generator",
            placement=Placement(replicas=replicas, procs=procs),
            options=ServiceOptions(**{"restart_delay": 0.01, **options}),
            on_event=lambda kind, message, data: site.events.append((kind, message)),
            watchdog=watchdog,
        )
        services.append(service)
        return service

    yield make
    for service in services:
        await service.close()
