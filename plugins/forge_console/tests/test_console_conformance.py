"""Tracker ``console`` under the suite of all trackers."""

from __future__ import annotations

from typing import Any

import pytest

from forge_console.plugin import forge_trackers
from forge_console.settings import ConsoleSettings
from forge_core import Selection
from forge_testing.conformance.tracker import TrackerConformance


class TestConsole(TrackerConformance):
    @pytest.fixture(params=["live", "plain"])
    def selection(self, request: pytest.FixtureRequest) -> Selection[Any]:
        [console] = forge_trackers()
        settings = ConsoleSettings(view=request.param)
        return Selection(family="tracker", component=console, settings=settings)
