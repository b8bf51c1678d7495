"""What ``docs/recipes.md`` shows is tested, and the page's tables are whole."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from forge_core import (
    AdvantageEstimator,
    RecipeContext,
    RecipeService,
    RolloutOptions,
    Selection,
    Step,
)
from forge_core.plugins.from_code import component_in_file
from forge_testing.conformance.advantage import AdvantageConformance

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"^```python title=acme_rejection.py\n(.*?)^```$", PAGE, re.S | re.M)


def test_the_recipe_is_the_one_of_the_example() -> None:
    """Whose own test runs it."""
    assert (ROOT / "examples/rejection/acme_rejection.py").read_text(encoding="utf-8") == SOURCE


def test_the_recipe_is_short() -> None:
    assert len(SOURCE.splitlines()) <= 60


@pytest.mark.parametrize(("kind", "name"), [(RecipeContext, "stage"), (Step(1, 1), "step")])
def test_the_page_names_all_that_there_is(kind: object, name: str) -> None:
    members = {each for each in dir(kind) if not each.startswith("_")}
    members |= set(getattr(kind, "__annotations__", ()))
    mentioned = set(re.findall(rf"\b{name}\.(\w+)", PAGE))
    own = {
        "finish",
        "metrics",
        "timing",
        "replay_buffer",
    }  # the kernel's, or part of stage.rollouts
    assert members - own - mentioned == set()
    assert mentioned - members == set()


def test_the_page_names_every_field_of_a_service() -> None:
    table = PAGE.partition("## Services of its own")[2]
    for field in inspect.signature(RecipeService).parameters:
        assert f"`{field}`" in table
    for field in ("groups", "group_size", "optimizer_steps", "max_staleness"):
        assert field in PAGE
        assert field in inspect.signature(RolloutOptions).parameters


class TestAboveBest(AdvantageConformance):
    @pytest.fixture
    def selection(self, tmp_path: Path) -> Selection[AdvantageEstimator]:
        (block,) = re.findall(r"^```python\n(def above_best.*?)^```$", PAGE, re.S | re.M)
        file = tmp_path / "my_advantage.py"
        file.write_text(block, encoding="utf-8")
        component = component_in_file("advantage", f"{file}:above_best", frozenset())
        settings = component.settings(margin=0.1)
        return Selection(family="advantage", component=component, settings=settings)
