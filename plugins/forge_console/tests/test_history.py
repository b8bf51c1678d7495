"""What the console remembers of a run that was resumed."""

from __future__ import annotations

import json
from pathlib import Path

from forge_console.history import RunHistory
from forge_core import Evaluation, Event, RunInfo, StageInfo, StepRecord
from forge_run.trackers.lines import METRICS


def test_curves_and_scores_cover_the_processes_before(tmp_path: Path) -> None:
    lines = [
        {"step": step, "stage": "sft" if step < 3 else "grpo", "loss": 10.0 - step, "entropy": None}
        for step in range(1, 8)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 8, "lo'
    (tmp_path / METRICS).write_text(text)
    score = Evaluation(stage="sft", moment="after", step=2, score=0.25, parts={}, tasks=4)
    run = RunInfo(
        name="r",
        folder=tmp_path,
        stages=[StageInfo(name=name, recipe=name, steps=10) for name in ("sft", "grpo")],
        resumed_from=5,
        evaluations=[score],
    )
    history = RunHistory(run, started=0.0)
    history.add_event(Event(time=0.0, kind="stage_started", message="", data={"index": 1}))
    history.add_step(
        StepRecord(
            step=6, stage="grpo", stage_step=4, stage_steps=10, metrics={"loss": 0.5}, timing={}
        ),
        now=1.0,
    )
    assert history.curves == {"loss": [(3.0, 7.0), (4.0, 6.0), (5.0, 5.0), (6.0, 0.5)]}
    assert history.scores == [(2.0, 0.25)]
