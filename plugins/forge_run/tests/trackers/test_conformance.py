"""The run's own tracker, and that the suite catches each way of being wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    RunInfo,
    Selection,
    Settings,
    StepRecord,
    Summary,
    TrackerComponent,
)
from forge_run.settings import JsonlSettings
from forge_run.trackers.jsonl import JsonlTracker
from forge_testing.conformance.tracker import TrackerConformance, run_info
from forge_testing.context import bare_context
from forge_testing.runs import lines_of


def tracker(build: Callable[..., Any], settings: Settings) -> Selection[Any]:
    component = TrackerComponent(
        name="mine", settings=type(settings), build=build, summary="under test"
    )
    return Selection(family="tracker", component=component, settings=settings)


class TestJsonl(TrackerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return tracker(JsonlTracker, JsonlSettings())

    def steps_shown(self, folder: Path) -> list[int]:
        return [line["step"] for line in lines_of(folder / "metrics.jsonl")]


class Lines:
    """Writes the number of each step into a file, and may be wrong in one way."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def start(self, run: RunInfo) -> None:
        self.path = run.folder / "lines"
        kept = self.path.read_text().splitlines() if self.path.exists() else []
        if self.fault != "keeps what is done again":
            kept = kept[: run.resumed_from or 0]
        self.path.write_text("".join(f"{line}\n" for line in kept))
        if self.fault == "leaves threads":
            threading.Thread(target=threading.Event().wait, args=(30.0,), daemon=True).start()
        if self.fault == "leaves files":
            self.files = [self.path.open() for _ in range(10)]
            Lines.leaked.append(self.files)

    leaked: list[Any] = []  # noqa: RUF012

    def step(self, record: StepRecord) -> None:
        if self.fault == "needs a loss":
            assert "loss" in record.metrics
        with self.path.open("a") as file:
            file.write(f"{record.step}\n")

    def event(self, event: Any) -> None: ...

    def episodes(self, step: int, episodes: Any) -> None: ...

    def finish(self, summary: Summary) -> None:
        if self.fault == "needs metrics at the end":
            assert summary.metrics["loss"]


class LinesConformance(TrackerConformance):
    def steps_shown(self, folder: Path) -> list[int]:
        return [int(line) for line in (folder / "lines").read_text().split()]


def lines(fault: str) -> Selection[Any]:
    def build(settings: Settings, context: BuildContext) -> Lines:
        return Lines(fault)

    return tracker(build, Settings())


class TestLines(LinesConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return lines("")


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("keeps what is done again", "test_a_run_that_goes_on_shows_each_step_once"),
        ("needs a loss", "test_it_follows_a_run"),
        ("leaves threads", "test_nothing_is_left_open"),
        ("leaves files", "test_nothing_is_left_open"),
    ],
)
def test_a_fault_is_caught(fault: str, test: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        getattr(LinesConformance(), test)(lines(fault), bare_context(), run_info(tmp_path))


def test_an_end_without_metrics_is_part_of_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        LinesConformance().test_a_run_may_end_before_its_first_step(
            lines("needs metrics at the end"), bare_context(), run_info(tmp_path)
        )
