"""The quickstart, whole: what the README promises somebody who has just found the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_testing.runs import scores_of


@pytest.mark.slow
def test_a_model_learns(run_forge_process: Any, tmp_path: Path) -> None:
    result = run_forge_process("run", "quickstart", timeout=1200)
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    scores = scores_of(run)
    assert scores["sft", "before"] < 0.1
    assert 0.3 < scores["sft", "after"] <= 0.65
    assert scores["grpo", "after"] >= 0.90
    # A log shows the way there: lines of steps, scores as they come, and where everything lies.
    assert "held-out score" in result.stdout
    assert str(run) in result.stdout
    assert "\x1b[" not in result.stdout
