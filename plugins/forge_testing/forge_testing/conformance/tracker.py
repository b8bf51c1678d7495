"""What every tracker must do. Inherit it, and say which tracker with the ``selection`` fixture.

.. code-block:: python

    class TestMine(TrackerConformance):
        @pytest.fixture
        def selection(self):
            return Selection(family="tracker", component=MINE, settings=MineSettings())

        def steps_shown(self, folder):
            return [int(line.split(",")[0]) for line in (folder / "mine.csv").open()]

It hears of a made-up run: two stages, evaluations, metrics that are not finite, texts in several
scripts, a failure, a run that goes on.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from forge_core import (
    BuildContext,
    Completion,
    Episode,
    Event,
    RunInfo,
    Selection,
    StageInfo,
    StepRecord,
    Summary,
    Task,
    Tracker,
    Turn,
)
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context

STEPS = 6
"""Of the run, in two stages."""

TEXTS = (
    "2",
    "",
    "line\nline\r\n\ttab",
    "naïve 数学 🙂 \u202e",
    "\x00\x1b[2J",
    "\ud83d",
    "a" * 10_000,
)
"""What tasks, completions and messages may hold."""

METRICS = (0.5, 0.0, -1.0, math.nan, math.inf, -math.inf, 1e300)


class TrackerConformance(Suite):
    """Inherit with a ``selection`` fixture; say with ``steps_shown`` what can be read back."""

    @pytest.fixture
    def selection(self) -> Selection[Tracker]:
        """The tracker under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def context(self) -> BuildContext:
        """What it is built with."""
        return bare_context()

    @pytest.fixture
    def run(self, tmp_path: Path) -> RunInfo:
        """The run it hears of. Its folder exists."""
        return run_info(tmp_path)

    def steps_shown(self, folder: Path) -> Sequence[int] | None:
        """Steps that it shows of the run in this folder, in order; None: it cannot be read."""
        return None

    def test_it_follows_a_run(
        self, selection: Selection[Tracker], context: BuildContext, run: RunInfo
    ) -> None:
        tracker = built(selection, context)
        tracker.start(run)
        follow(tracker, 1, STEPS)
        tracker.finish(summary(run, STEPS))
        self._check_steps(run.folder)

    def test_a_run_that_goes_on_shows_each_step_once(
        self, selection: Selection[Tracker], context: BuildContext, run: RunInfo
    ) -> None:
        """It ended at step 4, and goes on from its checkpoint of step 2."""
        first = selection.build(context)
        first.start(run)
        follow(first, 1, 4)
        second = selection.build(context)
        second.start(run_info(run.folder, resumed_from=2))
        follow(second, 3, STEPS)
        second.finish(summary(run, STEPS))
        self._check_steps(run.folder)

    def test_a_run_may_end_before_its_first_step(
        self, selection: Selection[Tracker], context: BuildContext, run: RunInfo
    ) -> None:
        tracker = selection.build(context)
        tracker.start(run)
        tracker.finish(summary(run, 0, failed=True))

    def test_a_run_may_fail_before_it_is_started(
        self, selection: Selection[Tracker], context: BuildContext, run: RunInfo
    ) -> None:
        selection.build(context).finish(summary(run, 0, failed=True))

    def test_two_follow_two_runs(
        self, selection: Selection[Tracker], context: BuildContext, tmp_path: Path
    ) -> None:
        folders = [tmp_path / "one", tmp_path / "other"]
        trackers = [selection.build(context) for _ in folders]
        for tracker, folder in zip(trackers, folders, strict=True):
            folder.mkdir()
            tracker.start(run_info(folder))
        for step in range(1, STEPS + 1):
            for tracker in trackers:
                follow(tracker, step, step)
        for tracker, folder in zip(trackers, folders, strict=True):
            tracker.finish(summary(run_info(folder), STEPS))
            self._check_steps(folder)

    def test_nothing_is_left_open(
        self, selection: Selection[Tracker], context: BuildContext, run: RunInfo
    ) -> None:
        """No file, connection or thread of it is left once the run has ended."""
        runs = [run_info(run.folder / str(number)) for number in range(6)]
        for number, each in enumerate(runs):
            each.folder.mkdir()
            self.test_it_follows_a_run(selection, context, each)
            if number == 0:  # what is loaded or started once is there now
                files, threads = _open_files(), threading.active_count()
        limit = time.monotonic() + 5.0
        while (
            _open_files() > files or threading.active_count() > threads
        ) and time.monotonic() < limit:
            time.sleep(0.05)
        assert threading.active_count() <= threads, "finish() leaves threads"
        assert _open_files() <= files, "finish() leaves files open"

    def _check_steps(self, folder: Path) -> None:
        """Each step of the run is shown once, in order, as far as that can be read."""
        shown = self.steps_shown(folder)
        assert shown is None or list(shown) == list(range(1, STEPS + 1))


def run_info(folder: Path, *, resumed_from: int | None = None) -> RunInfo:
    """A run of two stages in a folder."""
    stages = [StageInfo(name=name, recipe=name, steps=STEPS // 2) for name in ("sft", "grpo")]
    return RunInfo(
        name="conformance",
        folder=folder,
        stages=stages,
        components={"generator": "torch", "trainer": "torch"},
        resumed_from=resumed_from,
    )


def follow(tracker: Tracker, first: int, last: int) -> None:
    """What a tracker hears in these steps."""
    for step in range(first, last + 1):
        text = TEXTS[step % len(TEXTS)]
        stage = "sft" if step <= STEPS // 2 else "grpo"
        if step in (1, STEPS // 2 + 1):
            index = 0 if stage == "sft" else 1
            tracker.event(_event("stage_started", f"stage {stage}", {"index": index}))
        tracker.event(_event("warning", text, {"text": text, "number": METRICS[step]}))
        if stage == "grpo":
            tracker.episodes(step, [_episode(text) for text in TEXTS])
        tracker.step(
            StepRecord(
                step=step,
                stage=stage,
                stage_step=step - (0 if stage == "sft" else STEPS // 2),
                stage_steps=STEPS // 2,
                metrics={"loss": METRICS[step], "reward/mean": 0.5} if step > 1 else {},
                timing={"step_seconds": 0.1} if step > 1 else {},
            )
        )
        score = {"stage": stage, "moment": "during", "step": step, "score": 0.5, "tasks": 8}
        tracker.event(_event("evaluation", "0.500", {**score, "parts": {"exact_match": 0.5}}))


def summary(run: RunInfo, steps: int, *, failed: bool = False) -> Summary:
    """How the run ended."""
    return Summary(
        outcome="failed" if failed else "finished",
        exit_code=1 if failed else 0,
        message=TEXTS[3] if failed else "the target was reached",
        folder=run.folder,
        steps=steps,
        seconds=1.5,
        metrics={} if failed else {"loss": 0.25},
        warnings=list(TEXTS),
    )


def _event(kind: str, message: str, data: dict[str, object]) -> Event:
    return Event(time=time.time(), kind=kind, message=message, data=data)


def _episode(text: str) -> Episode:
    sampled = Completion([1, 2], [-0.5, -1.0], [0, 0], "stop")
    turns = [Turn("prompt", [0]), Turn("completion", sampled.tokens, sampled)]
    episode = Episode(Task(text or "empty", text, answer=text), turns, text, [text])
    episode.reward = 0.5
    return episode


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
