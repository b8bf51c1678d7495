"""``forge runs`` over folders in every state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_core import Evaluation, Summary
from forge_run.folder import RunFolder
from forge_run.writer import Writer

SCORE = Evaluation(step=3, stage="grpo", moment="after", score=0.5, parts={}, tasks=4)


def run_folder(output: Path, name: str) -> Path:
    path = output / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("name: small\n")
    summary = Summary(
        outcome="finished",
        exit_code=0,
        message="",
        folder=path,
        steps=3,
        seconds=1.5,
        evaluations=[SCORE],
    )
    RunFolder(path).write_summary(summary)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"outcome": "finished"}',
        b"[" * 100_000,
        b'{"outcome": "finished", "exit_code": 0, "message": "", "folder": "x", "steps": 3, '
        b'"seconds": 1, "evaluations": [{"score": "high"}]}',
    ],
    ids=repr,
)
def test_a_damaged_summary_is_named_and_the_others_are_listed(
    tmp_path: Path, run_forge: Any, content: bytes
) -> None:
    run_folder(tmp_path, "whole")
    damaged = run_folder(tmp_path, "damaged")
    (damaged / "summary.json").write_bytes(content)
    result = run_forge("runs", str(tmp_path), "--json")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: {damaged / 'summary.json'}: cannot be read (")
    assert line.endswith("; its outcome is not known")
    rows = {row["run"]: row for row in json.loads(result.stdout)}
    assert rows["whole"]["score"] == 0.5
    assert rows["damaged"] == {
        "run": "damaged",
        "outcome": "unknown",
        "steps": None,
        "score": None,
        "seconds": None,
        "checkpoint": None,
    }


def test_odd_things_in_a_run_folder_do_not_matter(tmp_path: Path, run_forge: Any) -> None:
    run = run_folder(tmp_path, "odd")
    (run / "config.yaml").write_bytes(b"\x00{")
    for name in ("step_x", "step_", "step_-1", "damaged_step_3", "step_2"):
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / "manifest.json").write_text("{")
    (run / "resumes").write_text("no folder")
    result = run_forge("runs", str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == [
        *("odd", "finished", "3", "0.5", "1.5", "step_2")
    ]


def test_a_run_that_is_being_written_is_running(tmp_path: Path, run_forge: Any) -> None:
    run = run_folder(tmp_path, "again")
    with Writer(run):
        assert " running " in run_forge("runs", str(tmp_path)).stdout
    assert " finished " in run_forge("runs", str(tmp_path)).stdout
