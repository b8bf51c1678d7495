"""The first signal is a request, the second the end."""

from __future__ import annotations

import os
import signal

import pytest

from forge_core.run.interrupt import StopRequest


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
