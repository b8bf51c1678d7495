"""One rank of a replica: an actor that builds the component in its process and runs its methods."""
# Monarch is untyped to mypy.
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, concurrent_endpoint

from forge_core import ReplicaSpec
from forge_local.component_host import ComponentHost, rank_environment
from forge_local.processes.frames import dumps
from forge_local.processes.logs import keep_bounded
from forge_local.wire import pack_error
from forge_monarch.actor_component import MonarchActor
from forge_monarch.bootstrap import END


@dataclass(frozen=True, kw_only=True)
class Boot:
    """What a rank is given before it builds anything.

    Args:
        rank: of this process in the replica.
        local_rank: among the processes on the same host.
        local_world_size: processes on the same host.
        env: environment variables to set before the component is imported.
        path: the controller's ``sys.path``.
        log: file that stdout and stderr go to; None: where they are.
        spec: pickled ``ReplicaSpec``.
    """

    rank: int
    local_rank: int
    local_world_size: int
    env: Mapping[str, str]
    path: tuple[str, ...]
    log: str | None
    spec: bytes


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a rank says of its process.

    Args:
        pid: its id, also that of the group with all that it starts.
        end: name under which its end is reported on its host (``ends.first_end``).
        free_port: a TCP port that is free on its host.
    """

    pid: int
    end: str
    free_port: int


class Rank(Actor):
    """Answers with whether a call failed, and its pickled value or exception."""

    def __init__(self) -> None:
        self._host: ComponentHost | None = None
        self._running: dict[int, asyncio.Task[Any]] = {}
        self._batches: dict[int, list[asyncio.Future[None]]] = {}

    @concurrent_endpoint
    async def prepare(self, boot: Boot) -> Facts:
        """Set the process up, while nothing heavy is imported and its environment still counts."""
        self._boot = boot
        if boot.log is not None:
            _redirect(boot.log)
            keep_bounded(Path(boot.log))
        sys.path.extend(entry for entry in boot.path if entry not in sys.path)
        os.environ.update(boot.env)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Facts(pid=os.getpid(), end=os.environ.pop(END), free_port=port)

    @concurrent_endpoint
    async def build(self, address: str, port: int) -> tuple[bool, bytes]:
        """Build the component; ``address`` and ``port`` are where rank 0 can be reached.

        Answers with the component if it is a ``MonarchActor``, which lives beside this actor.
        """
        try:
            spec: ReplicaSpec = pickle.loads(self._boot.spec)
            os.environ.update(
                rank_environment(spec, self._boot.rank, address, port),
                LOCAL_RANK=str(self._boot.local_rank),
                LOCAL_WORLD_SIZE=str(self._boot.local_world_size),
            )
            self._host = ComponentHost.build(spec, self._boot.rank)
            component = self._host.component
            return False, dumps(component if isinstance(component, MonarchActor) else None)
        except BaseException as error:
            return True, pack_error(error)

    @concurrent_endpoint
    async def run(self, number: int, batch: int, size: int, request: bytes) -> tuple[bool, bytes]:
        """Call a method of the component, once all calls of its batch are here.

        Args:
            number: of the call.
            batch: that the call belongs to.
            size: calls in the batch.
            request: pickled (method, args, kwargs).
        """
        task = asyncio.current_task()
        assert task is not None
        self._running[number] = task
        try:
            assert self._host is not None
            if size > 1:
                await self._gathered(batch, size)
            result = await self._host.call(*pickle.loads(request))
            # Every rank makes the same call; the replica's result is rank 0's.
            return False, dumps(result if self._boot.rank == 0 else None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return True, pack_error(error)
        finally:
            del self._running[number]

    async def _gathered(self, batch: int, size: int) -> None:
        gate = asyncio.get_running_loop().create_future()
        gates = self._batches.setdefault(batch, [])
        gates.append(gate)
        if len(gates) == size:
            for opened in self._batches.pop(batch):
                opened.set_result(None)
        await gate

    @concurrent_endpoint
    async def forget(self, number: int) -> None:
        """Cancel a call."""
        task = self._running.get(number)
        if task is not None:
            task.cancel()

    @concurrent_endpoint
    async def close(self) -> tuple[bool, bytes]:
        """Close the component."""
        try:
            if self._host is not None:
                await self._host.close()
            return False, dumps(None)
        except BaseException as error:
            return True, pack_error(error)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()


def _redirect(log: str) -> None:
    """Send what this process prints, native code included, to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(descriptor, number)
    os.close(descriptor)
