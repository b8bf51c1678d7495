"""Services over real processes that are killed, stopped and cancelled while they are called."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge_core import Component, Placement, ReplicaDied, RunFailed, Selection, ServiceOptions
from forge_local.processes.descendants import descendants
from forge_local.runtime import LocalRuntime
from forge_services import Service
from forge_testing.context import bare_context
from tests.chaos.cases import PATIENCE, Area, Wrong
from tests.chaos.subject import NoSettings

CALLS = 200
"""Of a case."""


class Worker:
    """Answers every call with what it was given."""

    def __init__(self) -> None:
        self._answered = 0

    async def echo(self, token: int, seconds: float) -> tuple[int, int]:
        await asyncio.sleep(seconds)
        self._answered += 1
        return token, os.getpid()

    async def fail(self, token: int) -> None:
        raise ValueError(f"told to fail: {token}")

    async def close(self) -> None:
        pass


def build(settings: Any, context: Any) -> Worker:
    return Worker()


def case(draw: random.Random, number: int, folder: Path) -> str:
    """A service of two or three replicas, a storm of calls, some deaths."""
    return asyncio.run(_storm(draw, folder))


async def _storm(draw: random.Random, folder: Path) -> str:
    runtime = LocalRuntime()
    component = Component(name="worker", settings=NoSettings, build=build, summary="")
    replicas = draw.randint(2, 3)
    service = await Service.start(
        runtime,
        Selection(family="generator", component=component, settings=NoSettings()),
        replace(bare_context(), logs=folder / "logs"),
        name="worker",
        placement=Placement(replicas=replicas, isolate=True),
        options=ServiceOptions(
            routing=draw.choice(["least_loaded", "round_robin", "sticky"]),
            concurrency=draw.choice([1, 4, 64]),
            tries=50,
            restarts=1000,
            restart_delay=0.01,
        ),
    )
    deaths = draw.randint(1, 3)
    chaos = asyncio.create_task(_kill(draw, deaths))
    calls = [asyncio.create_task(_call(service, draw, token)) for token in range(CALLS)]
    cancelled = set(draw.sample(range(CALLS), CALLS // 10))
    for token in cancelled:
        await asyncio.sleep(draw.uniform(0, 0.01))
        calls[token].cancel()
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await chaos
    for token, answer in enumerate(answers):
        if isinstance(answer, asyncio.CancelledError) and token in cancelled:
            continue
        if answer != token:
            raise Wrong(f"call {token} of {CALLS} came to {answer!r}")
    if service.metrics()["in_flight"]:
        raise Wrong(f"no call was made and {service.metrics()['in_flight']} calls are in flight")
    await service.close()
    with contextlib.suppress(RunFailed, ReplicaDied):
        await service.echo.route(0, 0.0)
        raise Wrong("a closed service answers")
    await runtime.close()
    return f"{deaths} deaths"


async def _call(service: Service, draw: random.Random, token: int) -> int:
    """What the call came to: its own token, if all is well."""
    await asyncio.sleep(draw.uniform(0, 1.0))
    if draw.random() < 0.1:
        try:
            await service.fail.route(token)
        except ValueError as error:
            if str(error) == f"told to fail: {token}":
                return token
        return -1
    answer: tuple[int, int] = await service.echo.route(token, draw.uniform(0, 0.05))
    return answer[0]


async def _kill(draw: random.Random, deaths: int) -> None:
    """Kill processes of replicas, inner or outer ones; some are stopped first for a while."""
    for _ in range(deaths):
        await asyncio.sleep(draw.uniform(0, 0.6))
        alive = descendants(os.getpid())
        if not alive:
            continue
        victim = draw.choice(alive)
        with contextlib.suppress(ProcessLookupError):
            if draw.random() < 0.4:
                os.kill(victim, signal.SIGSTOP)
                await asyncio.sleep(draw.uniform(0, 0.3))
            os.kill(victim, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV]))
            os.kill(victim, signal.SIGCONT)  # only SIGKILL reaches a process that is stopped


AREA = Area(
    name="services",
    about="calls to replicas in processes that are killed, stopped and cancelled",
    case=case,
    ci=4,
    count=CALLS,
)
