"""Several processes that are the ranks of one component, again and again: for tests of trainers.

Starting a process and importing an engine takes seconds, building a tiny trainer a fraction of one;
so the processes stay, and components come and go in them.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from forge_core import BuildContext, Selection
from forge_local.processes.frames import dumps

DEADLINE = 300.0
"""Seconds that a call of all ranks may take."""


class RankError(Exception):
    """A rank raised; the message is its traceback."""


class RankDied(Exception):
    """The process of a rank ended during a call; the message says how."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """A process, and this end of the pipe to it."""

    process: BaseProcess
    pipe: Connection

    def end(self, patience: float) -> None:
        """Close the pipe, which ends a process that is idle; kill it after that many seconds."""
        self.pipe.close()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class RankPool:
    """Processes that build a component together and are called together.

    Components may be defined in the test module: they travel by value. When a process has died or
    hangs, the call fails and the next ``build`` starts all of them again, so that a crash costs one
    test.

    Use it as a context manager, in a fixture of module scope.

    Args:
        ranks: processes.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._running = _start(ranks)

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *error: object) -> None:
        for rank in self._running:
            rank.end(5)

    def build(self, selection: Selection[Any], context: BuildContext, ranks: int = 0) -> Together:
        """Build the component on the first ``ranks`` of the processes (default: on all)."""
        if not all(rank.process.is_alive() for rank in self._running):
            for rank in self._running:
                rank.end(0)
            self._running = _start(self.ranks)
        together = Together(self._running[: ranks or self.ranks])
        port = _free_port()
        world_size = len(together.ranks)
        together.each(
            lambda rank: (
                "build",
                (selection, replace(context, rank=rank, world_size=world_size), port),
            )
        )
        return together


def _start(ranks: int) -> list[_Rank]:
    from multiprocessing import get_context

    spawn = get_context("spawn")
    started = []
    for _ in range(ranks):
        mine, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        started.append(_Rank(process, mine))
    return started


class Together:
    """A component on all its ranks: every method is called on each of them at once.

    A call returns what rank 0 returned; ``all`` holds what each of them did.
    """

    def __init__(self, ranks: Sequence[_Rank]) -> None:
        self.ranks = ranks
        self.all: list[Any] = []

    def each(self, request: Callable[[int], tuple[str, tuple[Any, ...]]]) -> Any:
        """Send each rank its request and wait for all of them.

        Raises:
            RankError: the first rank that raised, with its traceback.
            RankDied: the first rank whose process ended. The others are killed: they may wait for
                it in a collective.
            TimeoutError: not all have answered by the deadline. All are killed.
        """
        requests = [request(rank) for rank in range(len(self.ranks))]
        kind, arguments = requests[0]
        call = f"in {arguments[0]}()" if kind == "call" else f"in {kind}"
        if any(rank.pipe.closed or not rank.process.is_alive() for rank in self.ranks):
            raise RankDied(f"the ranks are gone since one ended in an earlier call; now {call}")
        try:
            for rank, message in zip(self.ranks, requests, strict=True):
                rank.pipe.send_bytes(dumps(message))
            answers = self._answers(call)
        except (RankDied, TimeoutError):
            for rank in self.ranks:
                rank.process.kill()
                rank.process.join()
            raise
        for number, (failed, value) in enumerate(answers):
            if failed:
                raise RankError(f"rank {number}: {value}")
        self.all = [value for _, value in answers]
        return self.all[0]

    def _answers(self, call: str) -> list[tuple[bool, Any]]:
        """What every rank answers, in the order of ranks."""
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + DEADLINE
        while len(answers) < len(self.ranks):
            pending = {
                rank.pipe: number for number, rank in enumerate(self.ranks) if number not in answers
            }
            ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = f"ranks {', '.join(map(str, pending.values()))} have not answered"
                raise TimeoutError(f"{silent} for {DEADLINE:.0f} s, {call}")
            for pipe, number in pending.items():
                if pipe in ready:
                    try:
                        answers[number] = pipe.recv()
                    except (EOFError, ConnectionError):
                        how = _how_it_ended(self.ranks[number].process)
                        raise RankDied(f"rank {number} {how}, {call}") from None
        return [answers[number] for number in range(len(self.ranks))]

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(self.each, lambda rank: ("call", (method, args, kwargs)))

        return call


def _how_it_ended(process: BaseProcess) -> str:
    process.join(60)
    code = process.exitcode
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _serve(pipe: Connection) -> None:
    faulthandler.enable()  # a crash of native code prints where Python was
    asyncio.run(_answer(pipe))


async def _answer(pipe: Connection) -> None:
    component: Any = None
    while True:
        try:
            kind, arguments = pickle.loads(await asyncio.to_thread(pipe.recv_bytes))
        except EOFError:
            os._exit(0)  # the pipe is closed; a collective may be under way
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
