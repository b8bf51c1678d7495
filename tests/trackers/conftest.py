"""The made-up run of ``demo.py``, for tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "tracker_demo", Path(__file__).with_name("demo.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def replay(demo: ModuleType, clock: Clock) -> Callable[..., object]:
    """``demo.replay`` in no time."""

    def replayed(*args: object, **kwargs: object) -> object:
        return demo.replay(*args, clock=clock, pause=clock.wait, **kwargs)

    return replayed
