"""The trainer and the optimizer that ``docs/trainers.md`` shows keep their contracts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from forge_core import Selection
from forge_core.plugins.from_code import component_in_file
from forge_testing.conformance.optimizer import OptimizerConformance
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


class TestSignDescent(OptimizerConformance):
    opt_out = {"test_it_travels_to_other_processes": "what is in a file travels by value"}  # noqa: RUF012

    @pytest.fixture(params=[{}, {"weight_decay": 0.1}], ids=str)
    def selection(self, request: pytest.FixtureRequest, tmp_path: Path) -> Selection[Any]:
        (block,) = [block for block in _blocks() if "class SignDescent" in block]
        file = tmp_path / "sign.py"
        file.write_text(block, encoding="utf-8")
        component = component_in_file("optimizer", f"{file}:SignDescent", frozenset())
        settings = component.settings(**request.param)
        return Selection(family="optimizer", component=component, settings=settings)
