"""How processes that ``bootstrap`` started have ended, told by the outer ones."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence


async def first_end(names: Sequence[str]) -> tuple[int, int | None]:
    """Wait until the first of these processes of this machine has ended.

    Args:
        names: that their ends are told under (``bootstrap.END``).

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
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


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
