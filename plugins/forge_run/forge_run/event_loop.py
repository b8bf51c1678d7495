"""The event loop of a run, also where one is running already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from forge_core.contracts.blame import is_foreign

T = TypeVar("T")


def run_to_end(
    work: Coroutine[Any, Any, T], broken: Callable[[BaseException], None] | None = None
) -> T:
    """``asyncio.run``, also where a loop is running already (a notebook): then in a thread.

    Args:
        work: what to do.
        broken: called with the exception by which a task in the background ended the event loop;
            then the work is cancelled. None: the exception is raised.
    """
    try:
        asyncio.get_running_loop()
        has_loop = True
    except RuntimeError:
        has_loop = False
    if not has_loop:  # outside of the handler, so that no failure is shown as "during handling of"
        return _in_loop(work, broken)
    result: list[T] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            result.append(_in_loop(work, broken))
        except BaseException as error:  # raised again in the calling thread
            failure.append(error)

    thread = threading.Thread(target=target, name="forge-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _in_loop(work: Coroutine[Any, Any, T], broken: Callable[[BaseException], None] | None) -> T:
    tasks: list[asyncio.Task[Any]] = []

    async def whole() -> T:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            return await work
        finally:
            # The end of the loop waits for the threads of its executor, some of which may hang.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    with asyncio.Runner() as runner:
        try:
            return runner.run(whole())
        except (SystemExit, KeyboardInterrupt) as error:
            if broken is None or not tasks or tasks[0].done() or not is_foreign(error):
                raise
            broken(error)
        (task,) = tasks
        task.cancel()
        ended: T = runner.get_loop().run_until_complete(task)
        return ended
