"""Code of components in the controller's process is ended at its deadline, whatever it does."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from forge_services import deadline
from forge_services.deadline import DeadlineExceeded, Hurried, await_within, call_within, hurry


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "AGAIN", 0.1)
    monkeypatch.setattr(deadline, "CLEANUP", 0.3)


def swallow() -> str:
    for _ in range(3):
        try:
            time.sleep(60)
        except BaseException:
            continue
    return "as if nothing had happened"


HANGS: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(60),
    "lock": lambda: threading.Event().wait(60),
    "pattern": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "swallow": swallow,
}


@pytest.mark.parametrize("how", HANGS)
def test_a_call_that_blocks(how: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"^no answer within 0\.2 s$"):
        call_within(0.2, HANGS[how])
    assert time.monotonic() - began < 20
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_call_that_returns_or_raises() -> None:
    assert call_within(60, lambda: call_within(60, lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        call_within(60, lambda: 1 / 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_outer_of_two_deadlines_holds() -> None:
    with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
        call_within(0.2, lambda: [call_within(60, lambda: None), time.sleep(60)])


def test_in_a_hurry_deadlines_are_short() -> None:
    try:
        hurry(0.1)
        with pytest.raises(Hurried):
            call_within(60, lambda: time.sleep(60))
        hurry(None)
        signal.signal(signal.SIGUSR1, lambda *_: hurry(0.1))
        timer = threading.Timer(
            0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)
        )
        timer.start()
        with pytest.raises(Hurried):
            call_within(60, lambda: time.sleep(60))
    finally:
        hurry(None)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


async def waits() -> None:
    await asyncio.sleep(60)


async def blocks() -> None:
    await asyncio.sleep(0)
    time.sleep(60)


async def ignores() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("coroutine", [waits, blocks, ignores])
async def test_a_coroutine_that_hangs(coroutine: Any) -> None:
    with pytest.raises(DeadlineExceeded, match=r"^no answer within 0\.2 s$"):
        await await_within(0.2, coroutine)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_coroutine_that_does_not_hang() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 3

    async def late() -> int:
        raise TimeoutError("its own")

    assert await await_within(60, answer) == 3
    with pytest.raises(TimeoutError, match="its own"):
        await await_within(60, late)


async def test_a_coroutine_that_ignores_its_cancellation_is_abandoned() -> None:
    async def wait() -> None:
        await await_within(600, ignores)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=20)
    assert done
    assert task.cancelled()


async def test_threads_that_hang_take_no_place_of_others() -> None:
    release = threading.Event()
    calls = [await_within(0.2, lambda: asyncio.to_thread(release.wait, 60)) for _ in range(40)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, DeadlineExceeded) for result in results)
    assert await await_within(20, lambda: asyncio.to_thread(lambda: 3)) == 3
    release.set()
