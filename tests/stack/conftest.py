"""A run of two short stages on a tiny model: the quickstart's shape at a hundredth of its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_testing import runs

Config = dict[str, Any]


@pytest.fixture
def small_config(tmp_path: Path) -> Config:
    """SFT for three steps, then GRPO for three, on sums of one-digit numbers."""
    return runs.small_config(
        eval_dataset={"use": "arithmetic", "low": 0, "high": 9, "split": "test"},
        checkpointing={"output_dir": str(tmp_path / "runs")},
        stages={
            "sft": {
                "recipe": {"use": "sft"},
                "training": {"steps": 3, "batch_size": 16, "learning_rate": 0.01},
            },
            "grpo": {
                "recipe": {"use": "grpo", "group_size": 8},
                "training": {"steps": 3, "batch_size": 32, "learning_rate": 0.001},
            },
        },
    )


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """``metrics.jsonl`` without what depends on the clock."""
    rows = runs.lines_of(folder / "metrics.jsonl")
    assert all(row["timing"] for row in rows)
    return runs.untimed(rows)
