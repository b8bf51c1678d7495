"""Runtime ``local``: a component that starts a process is built beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from forge_core import (
    BuildContext,
    GeneratorComponent,
    Location,
    Placement,
    ReplicaDied,
    Selection,
    Settings,
)
from forge_local.runtime import LocalRuntime
from forge_services import Health, Service
from forge_testing.context import bare_context


class Yard:
    """Where engines are started, each at its gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = 0
        self.running = 0

    def build(self, settings: Settings, context: BuildContext) -> Engine:
        self.started += 1
        assert self.gate.wait(60)
        return Engine(self, context.replica)

    @property
    def selection(self) -> Selection[Engine]:
        component = GeneratorComponent(
            name="engine",
            settings=Settings,
            build=self.build,
            location=lambda settings: Location(own_process=True),
            summary="for tests",
        )
        return Selection(family="generator", component=component, settings=Settings())


class Engine:
    def __init__(self, yard: Yard, replica: int) -> None:
        self._yard = yard
        self._replica = replica
        yard.running += 1

    async def index(self) -> int:
        return self._replica

    async def die(self) -> None:
        raise ReplicaDied("out of memory")

    async def close(self) -> None:
        self._yard.running -= 1


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.fixture
async def pair(yard: Yard) -> Callable[[], Awaitable[Service]]:
    async def start() -> Service:
        return await Service.start(
            LocalRuntime(),
            yard.selection,
            bare_context(),
            name="policy",
            placement=Placement(replicas=2),
        )

    return start


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_others_answer_while_one_starts_again(
    yard: Yard, pair: Callable[[], Awaitable[Service]]
) -> None:
    service = await pair()
    yard.gate.clear()
    assert await service.index.route() == 0
    with pytest.raises(Exception, match="out of memory"):
        async with service.session() as index:
            await service.die.route()
    await until(lambda: yard.started == 3)
    other = 1 - index
    assert [await service.index.route() for _ in range(3)] == [other] * 3
    yard.gate.set()
    await until(lambda: service.status().replicas[index].health == Health.HEALTHY)
    assert await service.index.fanout() == [0, 1]
    await service.close()
    assert yard.running == 0


async def test_what_is_still_being_built_at_the_end_is_closed(
    yard: Yard, pair: Callable[[], Awaitable[Service]]
) -> None:
    yard.gate.clear()
    start = asyncio.create_task(pair())
    await until(lambda: yard.started == 2)
    start.cancel()
    await asyncio.sleep(0)
    yard.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert yard.running == 0
