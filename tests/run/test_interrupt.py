"""The first signal is a request, the second the end; a lost terminal only ever asks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from forge_run.interrupt import StopRequest


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    """SIGHUP as a terminal's process has it, whatever these tests were started by."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_sets_the_flag_second_interrupts(number: signal.Signals) -> None:
    heard: list[str] = []
    before = signal.getsignal(number)
    with StopRequest(heard.append) as stop:
        assert stop.requested is None
        os.kill(os.getpid(), number)
        assert stop.requested == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert heard == [number.name]
    assert signal.getsignal(number) is before


def test_a_lost_terminal_asks_however_often_it_is_told() -> None:
    heard: list[str] = []
    with StopRequest(heard.append) as stop:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert stop.requested == "SIGHUP"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert heard == ["SIGHUP"]


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest(lambda name: None) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.requested is None
