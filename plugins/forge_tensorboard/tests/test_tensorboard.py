"""Tracker ``tensorboard``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from forge_core import RunInfo, Selection, StageInfo, StepRecord, Summary, UsageError
from forge_tensorboard.plugin import forge_trackers
from forge_tensorboard.settings import TensorboardSettings
from forge_tensorboard.tracker import FOLDER, TensorboardTracker
from forge_testing.conformance.tracker import TrackerConformance
from forge_testing.demo import replay


def scalars(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder / FOLDER), size_guidance={"scalars": 0})
    read.Reload()
    return read


def test_a_whole_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    replay([TensorboardTracker()], tmp_path)
    read = scalars(tmp_path)
    assert [event.step for event in read.Scalars("loss")] == list(range(1, 301))
    assert [event.step for event in read.Scalars("reward/mean")] == list(range(121, 301))
    assert [event.step for event in read.Scalars("timing/step_seconds")] == list(range(1, 301))
    assert read.Scalars("score/mean")[-1].value == pytest.approx(0.949, abs=1e-3)
    assert len(read.Scalars("score/exact_match")) == len(read.Scalars("score/mean"))


def test_a_resumed_run_replaces_what_it_does_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    stages = [StageInfo(name="s", recipe="sft", steps=5)]
    for resumed_from, steps, value in ((None, range(1, 6), 1.0), (3, range(4, 6), 2.0)):
        tracker = TensorboardTracker()
        tracker.start(RunInfo(name="r", folder=tmp_path, stages=stages, resumed_from=resumed_from))
        for step in steps:
            tracker.step(
                StepRecord(
                    step=step, stage="s", stage_step=step, stage_steps=5,
                    metrics={"loss": value}, timing={},
                )
            )  # fmt: skip
        tracker.finish(
            Summary(
                outcome="finished", exit_code=0, message="", folder=tmp_path, steps=5, seconds=1.0
            )
        )
    found = [(event.step, event.value) for event in scalars(tmp_path).Scalars("loss")]
    assert found == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]


def test_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard") as error:
        TensorboardTracker()
    assert "\n" not in str(error.value)


class TestConformance(TrackerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        pytest.importorskip("tensorboard")
        pytest.importorskip("torch")
        [tensorboard] = forge_trackers()
        return Selection(family="tracker", component=tensorboard, settings=TensorboardSettings())
