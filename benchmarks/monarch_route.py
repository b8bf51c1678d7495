"""What a routed call costs on runtime ``monarch``, against a bare Monarch call, in one run.

    python benchmarks/monarch_route.py [--calls 2000]

Both call an actor in one process on this host that hands back 100 bytes. Calls alternate, so that
the machine's moods fall on both; medians are compared. Target: at most 1.2.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from forge_core import BuildContext, Component, Selection, Settings
from forge_monarch.monarch_api import load
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings
from forge_services import Service
from forge_testing.context import bare_context

PAYLOAD = b"x" * 100
TARGET = 1.2


class Echo:
    async def echo(self, payload: bytes) -> bytes:
        return payload


def build_echo(settings: Settings, context: BuildContext) -> Echo:
    return Echo()


ECHO: Component[Echo] = Component(
    name="echo", settings=Settings, build=build_echo, summary="hands back what it gets"
)


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


async def compare(calls: int) -> tuple[float, float]:
    """Median seconds of a bare call and of a routed one."""
    load(hang_after=15.0)
    from monarch.actor import Actor, concurrent_endpoint, this_host

    class BareEcho(Actor):  # type: ignore[misc]
        @concurrent_endpoint  # type: ignore[untyped-decorator]
        async def echo(self, payload: bytes) -> bytes:
            return payload

    runtime = MONARCH.build(MonarchSettings(), bare_context())
    selection = Selection(family="generator", component=ECHO, settings=Settings())
    service = await Service.start(runtime, selection, bare_context(), name="echo")
    processes = this_host().spawn_procs({"procs": 1})
    bare = processes.spawn("bare", BareEcho)
    bare_times, routed_times = [], []
    try:
        for number in range(calls + 100):
            direct = await timed(lambda: bare.echo.call_one(PAYLOAD))
            routed = await timed(lambda: service.echo.route(PAYLOAD))
            if number >= 100:  # the first ones warm up
                bare_times.append(direct)
                routed_times.append(routed)
    finally:
        await service.close()
        await processes.stop()
        await runtime.close()
    return statistics.median(bare_times), statistics.median(routed_times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    bare, routed = asyncio.run(compare(parser.parse_args().calls))
    print(f"bare Monarch call   {bare * 1e3:.3f} ms")
    print(f"service.route       {routed * 1e3:.3f} ms")
    print(f"ratio               {routed / bare:.2f} (at most {TARGET})")


if __name__ == "__main__":
    main()
