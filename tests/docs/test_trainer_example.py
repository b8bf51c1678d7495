"""The trainer that ``docs/trainers.md`` shows keeps the contract, and is short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from forge_core import Selection
from forge_testing.conformance.trainer import TrainerConformance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainers.md"


def trainer() -> Any:
    """The component of the page's first python block."""
    names: dict[str, Any] = {"__name__": PAGE.stem}
    exec(compile(_blocks()[0], str(PAGE), "exec"), names)
    (component,) = names["forge_trainers"]()
    return component


def _blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)


class TestPlain(TrainerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        component = trainer()
        return Selection(family="trainer", component=component, settings=component.settings())


def test_it_is_short() -> None:
    lines = [line for line in _blocks()[0].splitlines() if line.strip()]
    body = lines[next(i for i, line in enumerate(lines) if line.startswith("class ")) :]
    assert len(body) <= 66
