"""What the runtime has on every other host: an actor that says what is there, and kills."""

from __future__ import annotations

# Monarch is untyped to mypy.
# mypy: disable-error-code="misc, untyped-decorator"
import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from monarch.actor import Actor, concurrent_endpoint

from forge_core.runtimes.devices import visible_devices

LOOK_EVERY = 0.2
"""Seconds between two looks at a process."""


class Warden(Actor):
    """Lives in a process of its own, so that it answers whatever replicas do."""

    @concurrent_endpoint
    async def devices(self) -> tuple[str, ...]:
        """Ids of the host's GPUs."""
        return visible_devices()

    @concurrent_endpoint
    async def address(self) -> str:
        """The host's name."""
        return socket.gethostname()

    @concurrent_endpoint
    async def sees(self, folder: Path) -> bool:
        """Whether a folder of the controller's is there."""
        return folder.is_dir()

    @concurrent_endpoint
    async def first_gone(self, pids: Sequence[int]) -> int:
        """Answers once one of these processes has ended: its index."""
        return await first_gone(pids)

    @concurrent_endpoint
    async def kill(self, groups: Sequence[int]) -> None:
        """Kill process groups."""
        kill_groups(groups)


async def first_gone(pids: Sequence[int]) -> int:
    """Index of the first of these processes of this machine that has ended."""
    while True:
        for index, pid in enumerate(pids):
            if not _runs(pid):
                return index
        await asyncio.sleep(LOOK_EVERY)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def kill_groups(groups: Sequence[int]) -> None:
    """Kill processes of this machine with all that they have started: each leads a group."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
