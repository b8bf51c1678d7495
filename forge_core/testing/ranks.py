"""Several processes that are the ranks of one component, again and again: for tests of trainers.

Starting a process and importing an engine takes seconds, building a tiny trainer a fraction of one;
so the processes stay, and components come and go in them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from forge_core.component import BuildContext, Selection
from forge_core.processes.frames import dumps

DEADLINE = 300.0
"""Seconds that a call of all ranks may take."""


class RankError(Exception):
    """A rank raised; the message is its traceback."""


class RankPool:
    """Processes that build a component together and are called together.

    Components may be defined in the test module: they travel by value.
    Use it as a context manager, in a fixture of module scope.

    Args:
        ranks: processes.
    """

    def __init__(self, ranks: int) -> None:
        from multiprocessing import get_context

        self.ranks = ranks
        spawn = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(ranks):
            mine, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def build(self, selection: Selection[Any], context: BuildContext, ranks: int = 0) -> Together:
        """Build the component on the first ``ranks`` of the processes (default: on all)."""
        together = Together(self._pipes[: ranks or self.ranks])
        port = _free_port()
        together.each(
            lambda rank: (
                "build",
                (selection, replace(context, rank=rank, world_size=len(together.pipes)), port),
            )
        )
        return together


class Together:
    """A component on all its ranks: every method is called on each of them at once.

    A call returns what rank 0 returned; ``all`` holds what each of them did.
    """

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes
        self.all: list[Any] = []

    def each(self, request: Callable[[int], tuple[str, tuple[Any, ...]]]) -> Any:
        """Send each rank its request and wait for all of them.

        Raises:
            RankError: the first rank that raised, with its traceback.
        """
        for rank, pipe in enumerate(self.pipes):
            pipe.send_bytes(dumps(request(rank)))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(DEADLINE):
                raise TimeoutError(f"rank {rank} has not answered for {DEADLINE:.0f} s")
            answers.append(pipe.recv())
        for rank, (failed, value) in enumerate(answers):
            if failed:
                raise RankError(f"rank {rank}: {value}")
        self.all = [value for _, value in answers]
        return self.all[0]

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(self.each, lambda rank: ("call", (method, args, kwargs)))

        return call


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _serve(pipe: Connection) -> None:
    asyncio.run(_answer(pipe))


async def _answer(pipe: Connection) -> None:
    component: Any = None
    while True:
        try:
            kind, arguments = pickle.loads(await asyncio.to_thread(pipe.recv_bytes))
        except EOFError:
            os._exit(0)  # nobody listens; a collective may be under way
        try:
            if kind == "build":
                if component is not None:
                    await component.close()
                component = _build(*arguments)
                result = None
            else:
                method, args, kwargs = arguments
                result = getattr(component, method)(*args, **kwargs)
                if asyncio.iscoroutine(result):
                    result = await result
                if method == "close":
                    component = None
            pipe.send((False, result))
        except Exception:
            pipe.send((True, traceback.format_exc()))
        sys.stderr.flush()


def _build(selection: Selection[Any], context: BuildContext, port: int) -> Any:
    os.environ |= {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_WORLD_SIZE": str(context.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return selection.build(context)
