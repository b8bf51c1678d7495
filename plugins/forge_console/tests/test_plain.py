"""The console without a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from forge_console.plain import PlainLog
from forge_core import Summary
from forge_core.command import forge_command
from forge_testing.demo import replay

GOLDEN = """\
run demo: sft (sft, 120 steps), grpo (grpo, 180 steps)
generator torch, trainer torch, loss cross_entropy, transport memory, runtime local
folder RUN
    0:00  stage sft (1 of 2): recipe sft, 120 steps
    0:00  sft: held-out score 0.000 before training (200 tasks, step 0)
    0:00  step   1/300  sft   1/120  loss    2.542  score 0.0000  train  18,000 tok/s
    0:06  sft: held-out score 0.348 during training (200 tasks, step 30)
    0:10  step  50/300  sft  50/120  loss   0.9254  score 0.3477  train  17,543 tok/s  0:14 left
    0:12  sft: held-out score 0.476 during training (200 tasks, step 60)
    0:18  sft: held-out score 0.523 during training (200 tasks, step 90)
    0:20  step 101/300  sft 101/120  loss   0.4290  score 0.5226  train  17,689 tok/s  0:04 left
    0:24  step 120/300  sft 120/120  loss   0.3463  score 0.5226  train  17,661 tok/s
    0:24  checkpoint step_120
"""


def log_of(clock: Any, folder: Path, **how: Any) -> list[str]:
    file = io.StringIO()
    replay([PlainLog(file, how.pop("interval", 10.0), clock=clock)], folder, clock=clock, **how)
    return file.getvalue().replace(str(folder), "RUN").splitlines()


def test_the_first_stage_reads_like_this(tmp_path: Path, clock: Any) -> None:
    lines = log_of(clock, tmp_path)
    assert lines[: len(GOLDEN.splitlines())] == GOLDEN.splitlines()


def test_there_is_a_line_for_every_interval_and_for_both_ends_of_a_stage(
    tmp_path: Path, clock: Any
) -> None:
    steps = [line for line in log_of(clock, tmp_path, interval=20.0) if "  step " in line]
    numbers = [int(line.split("step")[1].split("/")[0]) for line in steps]
    assert numbers[0] == 1
    assert {120, 121, 300} <= set(numbers)
    assert len(numbers) == 6


def test_columns_stay_where_they_are(tmp_path: Path, clock: Any) -> None:
    lines = [
        line
        for line in log_of(clock, tmp_path, interval=0.0)
        if "  step " in line and "  grpo " in line
    ]
    assert len(lines) == 180
    for word in ("reward", "loss", "score", "sampled", "train"):
        assert len({line.index(f"  {word}") for line in lines}) == 1


def test_alarms_say_what_they_are(tmp_path: Path, clock: Any) -> None:
    lines = log_of(clock, tmp_path)
    assert any(
        line.endswith("reward failed: exact_match gave no answer within 2.0 s: reward 0 by rule")
        for line in lines
    )


def test_the_end_of_a_finished_run(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "metrics.jsonl").touch()
    lines = log_of(clock, tmp_path)
    lines = lines[lines.index("✓ finished demo · 300 steps in 1:00") :]
    assert "  the target was reached" in lines
    assert "  sft             0.000 → 0.540  (200 tasks)" in lines
    assert "  grpo            0.540 → 0.949  (200 tasks)" in lines
    assert "  metrics     RUN/metrics.jsonl" in lines
    assert "  checkpoint  RUN/checkpoints/step_300" in lines
    assert not any("--resume" in line or "error.txt" in line for line in lines)
    assert any(line.startswith("  forge config show RUN ") for line in lines)


def test_the_end_of_a_failed_run(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "error.txt").touch()
    lines = log_of(clock, tmp_path, outcome="failed")
    assert any(line.startswith("✗ failed demo · 200 steps in") for line in lines)
    assert "  trainer torch: the loss is nan at step 201" in lines
    assert "  error       RUN/error.txt" in lines
    assert "  grpo            0.540 → 0.815  (200 tasks)" in lines
    assert any(line.startswith(f"  {forge_command()} run --resume RUN ") for line in lines)
    assert any("warnings    2, the last: trainer torch: the loss is nan" in line for line in lines)


def test_a_run_that_never_began_still_ends_with_a_summary(tmp_path: Path) -> None:
    file = io.StringIO()
    PlainLog(file, 1.0).finish(
        Summary(outcome="failed", exit_code=1, message="no", folder=tmp_path, steps=0, seconds=0.0)
    )
    assert "✗ failed · 0 steps in 0:00" in file.getvalue()
    assert "\x1b" not in file.getvalue()
