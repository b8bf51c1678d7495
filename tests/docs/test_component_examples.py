"""The loss, the environment and the tracker that ``docs/`` shows keep their contracts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forge_core import BuildContext, EnvironmentComponent, Response, Selection, Settings, Task
from forge_testing.conformance.environment import EnvironmentConformance
from forge_testing.conformance.loss import LossConformance
from forge_testing.conformance.tracker import TrackerConformance

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(page: str) -> dict[str, Any]:
    """What the page's python blocks define."""
    names: dict[str, Any] = {"__name__": page}
    for block in re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.S | re.M):
        exec(compile(block, page, "exec"), names)
    return names


class TestRecent(LossConformance):
    not_differentiated = example("losses.md")["TestRecent"].not_differentiated

    @pytest.fixture
    def selection(self) -> Selection[Any]:
        (component,) = example("losses.md")["forge_losses"]()
        return Selection(family="loss", component=component, settings=component.settings())


class TestSmoothed(LossConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        component = example("losses.md")["SMOOTHED"]
        return Selection(family="loss", component=component, settings=component.settings())


class TestGuess(EnvironmentConformance):
    replies = ("1", "9", "5")

    @pytest.fixture
    def selection(self) -> Selection[Any]:
        guess = example("environments.md")["Guess"]

        def build(settings: Settings, context: BuildContext) -> Any:
            return guess()

        component = EnvironmentComponent(
            name="guess", settings=Settings, build=build, summary="guess"
        )
        return Selection(family="environment", component=component, settings=Settings())

    @pytest.fixture
    def tasks(self) -> Sequence[Task]:
        return [Task("guess", "", answer="5")]


class TestCsv(TrackerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        (component,) = example("trackers.md")["forge_trackers"]()
        settings = component.settings()
        return Selection(family="tracker", component=component, settings=settings)

    def steps_shown(self, folder: Path) -> Sequence[int]:
        return [int(line.split(",")[0]) for line in (folder / "loss.csv").read_text().split()]


async def test_the_environment_says_what_the_page_says() -> None:
    page = example("environments.md")
    interaction = await page["Guess"]().start(Task("guess", "", answer="5"), 0)
    answers = [await interaction.respond(guess, "stop") for guess in ("3", "7", "5")]
    assert answers == ["Higher.", "Lower.", Response(reward=1.0, metrics={"guesses": 3}, done=True)]
    cut = await interaction.respond("1234", "length")
    assert (cut.reward, cut.done) == (-0.5, True)


@pytest.mark.parametrize(
    "page", ["losses.md", "datasets.md", "environments.md", "recipes.md", "rewards.md"]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), f"{page} links to {target}"
