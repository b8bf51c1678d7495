"""Coroutines that rarely wait: run one after the other in one task, side by side where they wait.

A task of its own for each costs more than what most of them do. Python 3.12 has eager tasks; they
still are a task for each, and 3.11 has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any

from forge_services.deadline import calls_in_a_row

Work = Coroutine[Any, Any, None]


class EagerTasks:
    """Runs coroutines as if each had a task of its own.

    They are begun in order, in one task. The first that waits keeps that task, and those behind it
    get tasks of their own, so that none is held up. Each has its own context, as in a task.
    """

    def __init__(self) -> None:
        self._left: deque[Work] = deque()
        self._leaving: list[tuple[Work, Context]] = []
        self._beginning = False
        """Whether a coroutine is in its first stretch, in the task of those before it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ended_well = 0
        self._over: asyncio.Future[None]

    async def run(self, works: Iterable[Work]) -> None:
        """Wait for all; the first that fails ends the others and is raised."""
        self._left.extend(works)
        self._over = asyncio.get_running_loop().create_future()
        self._spawn(self._begin_all())
        try:
            await self._over
        finally:
            if self._over.done() and not self._over.cancelled():
                self._over.exception()  # retrieved, if this was cancelled in the same moment
            while self._left:
                self._left.popleft().close()
            unfinished = [task for task in self._tasks if not task.done()]
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.gather(*unfinished, return_exceptions=True)

    def _spawn(self, work: Work, context: Context | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self._ended_well += error is None and not task.cancelled()
        if self._over.done():
            return
        if task.cancelled():
            self._over.cancel()
        elif error is not None:
            self._over.set_exception(error)
        elif self._ended_well == len(self._tasks):
            self._over.set_result(None)

    async def own_task(self) -> None:
        """For one of the coroutines, before it waits for what the others will wait for too: go on
        when all were begun, so that all of them ask in the same turn of the event loop."""
        if self._beginning:
            await _Leave()

    async def _begin_all(self) -> None:
        waiting: tuple[Work, Context, Any] | None = None
        try:
            with calls_in_a_row():
                while self._left and waiting is None:
                    waiting = self._begin(self._left.popleft())
        finally:
            for work, context in self._leaving:
                self._spawn(work, context)
        if waiting is not None:
            while self._left:
                self._spawn(self._left.popleft())
            await _Rest(*waiting)

    def _begin(self, work: Work) -> tuple[Work, Context, Any] | None:
        """Run a coroutine until it waits. Returns it with what it waits for, if it does."""
        context = copy_context()
        self._beginning = True
        try:
            waits_for = context.run(work.send, None)
        except StopIteration:
            return None
        finally:
            self._beginning = False
        if isinstance(waits_for, _Leave):
            self._leaving.append((work, context))
            return None
        return work, context, waits_for


class _Leave(Awaitable[None]):
    """What a coroutine yields, to its row and to nothing else, to have a task of its own."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


class _Rest(Awaitable[None]):
    """A coroutine from its first wait to its end."""

    def __init__(self, work: Work, context: Context, waits_for: Any) -> None:
        self._work = work
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    self._work.close()
                    raise
                except BaseException as error:
                    waits_for = self._context.run(self._work.throw, error)
                else:
                    waits_for = self._context.run(self._work.send, sent)
        except StopIteration:
            return
