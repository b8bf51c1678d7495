"""Processes of one Monarch world that do what a test says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from forge_core import BuildContext
from forge_testing.context import bare_context
from forge_torchstore import torchstore_api

torchstore_api.load()

import monarch.actor  # noqa: E402
from monarch.actor import Actor, concurrent_endpoint, this_host  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no process can import a conftest

_end_client = monarch.actor.unhandled_fault_hook


def _outlive_workers(failure: Any) -> None:
    """By default the death of an unsupervised process ends the client. That of a worker is
    meant, and Monarch may tell of it after the test that killed it."""
    if not failure.mesh_name.startswith(("worker", "logger")):
        _end_client(failure)


monarch.actor.unhandled_fault_hook = _outlive_workers

Workers = Callable[[int], AbstractAsyncContextManager[list[Any]]]


class Worker(Actor):
    """Awaits functions in a process of its own."""

    @concurrent_endpoint
    async def run(self, function: Any, *arguments: Any) -> Any:
        return await function(*arguments)


@asynccontextmanager
async def _workers(count: int) -> AsyncIterator[list[Any]]:
    meshes = [this_host().spawn_procs(per_host={"procs": 1}) for _ in range(count)]
    try:
        yield [mesh.spawn("worker", Worker) for mesh in meshes]
    finally:
        for mesh in meshes:
            await mesh.stop()


@pytest.fixture
def workers() -> Workers:
    """Start handles on workers, each in a process of its own; none is left."""
    return _workers


@pytest.fixture
def context() -> BuildContext:
    """A build context with a channel of its own."""
    return bare_context()


def _children() -> set[int]:
    """Processes that this one started, zombies left out."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == _SELF and state not in "ZX":
            found.add(int(status.parent.name))
    return found


_SELF = int(Path("/proc/self").readlink().name)


@pytest.fixture
def children() -> Callable[[], set[int]]:
    """Ask for the processes that this one has started."""
    return _children


@pytest.fixture
async def no_process_left() -> AsyncIterator[None]:
    """After the test this process has no child that it had not before."""
    before = _children()
    yield
    for _ in range(100):
        if not _children() - before:
            return
        await asyncio.sleep(0.1)
    assert _children() - before == set()
