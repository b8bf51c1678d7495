"""Coroutines in one task while none waits, side by side where they do."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from forge_rollouts.eager import EagerTasks

name: ContextVar[str] = ContextVar("name", default="none")


async def test_what_never_waits_runs_in_order_in_one_task() -> None:
    done: list[tuple[int, object]] = []

    async def work(index: int) -> None:
        assert name.get() == "none"
        name.set(str(index))
        done.append((index, asyncio.current_task()))

    await EagerTasks().run(work(index) for index in range(5))
    assert [index for index, _ in done] == list(range(5))
    assert len({task for _, task in done}) == 1


async def test_one_that_waits_holds_up_none() -> None:
    ready = asyncio.Event()
    done: list[int] = []

    async def work(index: int) -> None:
        name.set(str(index))
        if index in (1, 3):
            async with asyncio.timeout(60):
                await ready.wait()
        done.append(index)
        if index == 4:
            ready.set()
        assert name.get() == str(index)

    await EagerTasks().run(work(index) for index in range(5))
    assert done == [0, 2, 4, 1, 3]


async def test_those_that_want_their_own_tasks_go_on_in_the_same_turn_of_the_loop() -> None:
    tasks = EagerTasks()
    turn = 0
    asked: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def work(index: int) -> None:
        await tasks.own_task()
        asked.append((index, turn))
        await asyncio.sleep(0)
        await tasks.own_task()  # it has one by now

    counting = asyncio.create_task(count())
    await tasks.run(work(index) for index in range(4))
    counting.cancel()
    assert [index for index, _ in asked] == list(range(4))
    assert len({turn for _, turn in asked}) == 1


@pytest.mark.parametrize("failing", [0, 1, 3])
async def test_the_first_failure_ends_the_others(failing: int) -> None:
    cancelled: list[int] = []

    async def work(index: int) -> None:
        if index == failing:
            raise KeyError(index)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(index)
            raise

    with pytest.raises(KeyError, match=str(failing)):
        await EagerTasks().run(work(index) for index in range(4))
    assert set(cancelled) <= set(range(4)) - {failing}
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_ends_all() -> None:
    ended: list[int] = []

    async def work(index: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(index)

    running = asyncio.create_task(EagerTasks().run(work(index) for index in range(3)))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == [0, 1, 2]
