"""A clock for made-up runs."""

from __future__ import annotations

import pytest

from forge_testing.demo import StoppedClock


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()
