"""Weights that reach the engine without leaving the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core.testing.runs import lines_of


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_run_with_the_engine_in_its_own_process(
    small_config: dict[str, Any], write_config: Any, run_forge_process: Any, tmp_path: Path
) -> None:
    small_config["transport"] = {"use": "cuda_ipc"}
    small_config["generator"]["engine"]["enforce_eager"] = True
    result = run_forge_process("run", str(write_config(small_config)), timeout=600)
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    rows = lines_of(run / "metrics.jsonl")
    steps = [row for row in rows if "mismatch/logprob_abs_max" in row]
    assert len(steps) == 3
    # Weights that were torn, late or mixed up would be far from the trainer's.
    assert all(row["mismatch/logprob_abs_max"] < 0.05 for row in steps)
