"""The quickstart, whole: what the README promises somebody who has just found the project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_a_model_learns(run_forge_process: Any, tmp_path: Path) -> None:
    result = run_forge_process("run", "quickstart", timeout=1200)
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    evaluations = json.loads((run / "summary.json").read_text())["evaluations"]
    scores = {(score["stage"], score["moment"]): score["score"] for score in evaluations}
    assert scores["sft", "before"] < 0.1
    assert 0.3 < scores["sft", "after"] <= 0.65
    assert scores["grpo", "after"] >= 0.90
    # A log shows the way there: lines of steps, scores as they come, and where everything lies.
    assert "held-out score" in result.stdout
    assert str(run) in result.stdout
    assert "\x1b[" not in result.stdout
