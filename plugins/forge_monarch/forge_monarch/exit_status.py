"""How processes that ``bootstrap`` started are ended, and how their outer processes report it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from forge_monarch.bootstrap import KILL_LIMIT, kill_group


async def kill_groups(groups: Sequence[int]) -> None:
    """Kill processes of this machine with all that they have started, and wait until they are gone.

    Args:
        groups: each led by one of the processes, and named by its id. What is gone is left alone.
    """
    for leader in groups:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_LIMIT):
            while any(map(_is_there, groups)):
                await asyncio.sleep(0.01)
    for leader in groups:
        # Its outer process has done so, unless that was killed itself.
        await asyncio.to_thread(kill_group, leader)


async def first_end(names: Sequence[str]) -> tuple[int, int | None]:
    """Wait until the first of these processes of this machine has ended.

    Args:
        names: under which their ends are reported (``bootstrap.END``).

    Returns its index and its exit code, which is minus the signal's number if one killed it, and
    None if the outer process has been killed as well.
    """
    waits = [asyncio.ensure_future(_end(name)) for name in names]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return next((index, wait.result()) for index, wait in enumerate(waits) if wait.done())
    finally:
        for wait in waits:
            wait.cancel()


def describe_end(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "has ended"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"was killed by {known.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def _end(name: str) -> int | None:
    try:
        reader, writer = await asyncio.open_unix_connection(f"\0{name}")
    except OSError:
        return None
    try:
        told = await reader.read()
    except OSError:
        return None
    finally:
        writer.close()
    return int(told) if told else None
