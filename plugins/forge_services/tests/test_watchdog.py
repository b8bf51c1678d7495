"""Nothing waits silently."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time

import pytest

from forge_core import Component, Selection, Settings
from forge_local.runtime import LocalRuntime
from forge_services import Service
from forge_services.watchdog import Watchdog, caller
from forge_testing.context import bare_context


class Listener:
    def __init__(self):
        self.heard = []

    def wait_for(self, count):
        limit = time.monotonic() + 20
        while len(self.heard) < count and time.monotonic() < limit:
            time.sleep(0.005)
        assert len(self.heard) >= count

    def __call__(self, kind, message, data):
        self.heard.append((kind, message, data, threading.current_thread().name))


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def watchdog(listener):
    with Watchdog(listener, threshold=0.04) as watchdog:
        yield watchdog


def test_a_long_wait_is_reported_once_per_doubling(watchdog, listener):
    with watchdog.waiting("recipe grpo", "trainer.train_step"):
        listener.wait_for(3)
    doublings = [math.floor(math.log2(data["seconds"] / 0.04)) for _, _, data, _ in listener.heard]
    assert doublings[0] >= 0
    assert doublings == sorted(set(doublings))
    kind, message, data, thread = listener.heard[0]
    assert kind == "waiting"
    assert message.startswith("recipe grpo has waited 0.")
    assert "for trainer.train_step" in message
    assert (data["who"], data["what"], data["calls"]) == ("recipe grpo", "trainer.train_step", 1)
    assert thread == "forge-watchdog"


def test_short_waits_do_not_add_up(listener):
    with Watchdog(listener, threshold=0.4) as watchdog:
        for _ in range(10):
            with watchdog.waiting("recipe grpo", "trainer.train_step"):
                time.sleep(0.05)
    assert listener.heard == []


def test_a_wait_that_ends_by_an_exception_is_over(listener):
    with Watchdog(listener, threshold=0.05) as watchdog:
        with pytest.raises(ValueError, match="x"), watchdog.waiting("a", "b"):
            raise ValueError("x")
        time.sleep(0.2)
    assert listener.heard == []


def test_equal_waits_are_reported_together(watchdog, listener):
    with watchdog.waiting("recipe", "generate"), watchdog.waiting("recipe", "generate"):
        listener.wait_for(2)
    assert [data["calls"] for _, _, data, _ in listener.heard[:2]] == [2, 2]
    assert listener.heard[0][1].endswith("for generate (2 calls)")


def test_a_report_names_the_last_event(watchdog, listener):
    watchdog.heard("checkpoint written")
    with watchdog.waiting("recipe", "generate"):
        listener.wait_for(1)
    assert listener.heard[0][1].endswith("s ago: checkpoint written")
    assert listener.heard[0][2]["last_event"] == "checkpoint written"


def test_the_log_tells_too(watchdog, listener, caplog):
    with caplog.at_level(logging.INFO), watchdog.waiting("recipe", "generate"):
        listener.wait_for(1)
    assert any("recipe has waited" in record.message for record in caplog.records)


def test_a_listener_that_raises_does_not_end_the_watch(listener):
    def broken(kind, message, data):
        listener(kind, message, data)
        raise RuntimeError("tracker is full")

    with Watchdog(broken, threshold=0.03) as watchdog, watchdog.waiting("recipe", "generate"):
        listener.wait_for(2)


def test_after_close_no_thread_is_left(listener):
    watchdog = Watchdog(listener, threshold=0.03)
    with watchdog.waiting("a", "b"):
        assert "forge-watchdog" in [thread.name for thread in threading.enumerate()]
    watchdog.close()
    watchdog.close()
    assert "forge-watchdog" not in [thread.name for thread in threading.enumerate()]


def test_a_threshold_of_zero_is_refused(listener):
    with pytest.raises(ValueError, match="above 0 s"):
        Watchdog(listener, threshold=0)


class BlockerSettings(Settings):
    pass


class Blocker:
    def block(self):
        time.sleep(0.1)  # on the event loop, as a trainer's step in the local runtime is

    async def idle(self):
        await asyncio.sleep(0.5)


def build_blocker(settings, context):
    return Blocker()


async def test_service_calls_register_themselves_also_when_they_block_the_loop(watchdog, listener):
    component = Component(
        name="blocker", settings=BlockerSettings, build=build_blocker, summary="blocks"
    )
    context = bare_context()
    service = await Service.start(
        LocalRuntime(),
        Selection(family="trainer", component=component, settings=BlockerSettings()),
        context,
        name="trainer",
        watchdog=watchdog,
    )
    token = caller.set("recipe grpo")
    try:
        await service.block.route()
        calls = [asyncio.ensure_future(service.idle.route()) for _ in range(2)]
        await asyncio.gather(*calls)
    finally:
        caller.reset(token)
        await service.close()
    assert listener.heard[0][2]["who"] == "recipe grpo"
    assert listener.heard[0][2]["what"] == "trainer.block"
    idle = [data for _, _, data, _ in listener.heard if data["what"] == "trainer.idle"]
    assert {(data["who"], data["calls"]) for data in idle} == {("recipe grpo", 2)}
