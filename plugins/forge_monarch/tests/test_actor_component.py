"""A component can be a Monarch actor, and programs of Monarch's own work beside ours."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint, this_host

from forge_core import BuildContext, Component, Placement, Selection, Settings
from forge_monarch import MonarchActor
from forge_monarch.plugin import MONARCH
from forge_monarch.runtime import MonarchRuntime
from forge_monarch.settings import MonarchSettings
from forge_services import Service
from forge_testing.context import bare_context


class Counter(Actor):
    """Counts by its own stride; knows nothing of Forge."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._count = 0

    @concurrent_endpoint
    async def count(self) -> tuple[int, int, int]:
        self._count += self._stride
        return self._count, current_rank().rank, os.getpid()

    @concurrent_endpoint
    async def fail(self) -> None:
        raise ZeroDivisionError("no good")

    @concurrent_endpoint
    async def ask(self, other: Any) -> str:
        """Calls an actor of somebody else's, whose mesh it was handed."""
        return str(await other.greet.call_one())


class Greeter(Actor):
    @endpoint
    async def greet(self) -> str:
        return "hello"


class CounterSettings(Settings):
    stride: int = 1


def _build(settings: CounterSettings, context: BuildContext) -> MonarchActor:
    return MonarchActor(Counter, settings.stride)


@pytest.fixture
async def runtime() -> AsyncIterator[MonarchRuntime]:
    runtime = MONARCH.build(MonarchSettings(), bare_context())
    yield runtime
    await runtime.close()


async def test_an_actor_as_a_component(runtime: MonarchRuntime) -> None:
    component: Component[Any] = Component(
        name="counter", settings=CounterSettings, build=_build, summary="counts"
    )
    selection = Selection(
        family="generator", component=component, settings=CounterSettings(stride=3)
    )
    beside = this_host().spawn_procs({"procs": 1})
    service = await Service.start(
        runtime, selection, bare_context(), name="counter", placement=Placement(procs=2)
    )
    try:
        greeter = beside.spawn("greeter", Greeter)
        assert await service.ask.route(greeter) == "hello"
        count, rank, pid = await service.count.route()
        assert (count, rank) == (3, 0)
        assert pid != os.getpid()
        assert (await service.count.route())[0] == 6
        with pytest.raises(ZeroDivisionError, match="no good"):
            await service.fail.route()
        assert await greeter.greet.call_one() == "hello"
    finally:
        await service.close()
        await beside.stop()
