"""Several optimizer steps for what is sampled at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, UsageError
from forge_testing.runs import lines_of, small_config

CONFIG: dict[str, Any] = small_config(
    recipe={"use": "grpo", "group_size": 8, "optimizer_steps": 3, "zero_variance": "keep"},
    training={"steps": 6, "batch_size": 16, "learning_rate": 0.001},
)


def test_each_step_trains_its_part_of_a_rollout(tmp_path: Path) -> None:
    summary = Forge().run(CONFIG, {"checkpointing.output_dir": str(tmp_path)})
    rows = lines_of(summary.folder / "metrics.jsonl")
    assert [row.get("groups/total") for row in rows] == [6, None, None] * 2
    assert [row["staleness/max"] for row in rows] == [0] * 6
    assert len({row["trained_tokens"] for row in rows}) >= 1
    assert all(row["trained_tokens"] > 0 for row in rows)
    # The first step is on-policy; the others train what weights before them have sampled.
    assert rows[0]["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert abs(rows[2]["ratio"] - 1) > abs(rows[0]["ratio"] - 1)
    versions = {
        version
        for row in lines_of(summary.folder / "episodes.jsonl")
        for version in row["versions"]
        if version >= 0
    }
    assert versions == {0, 1}


@pytest.mark.parametrize(("staleness", "shown"), [(0, 2), (1, 5)])
def test_plan_counts_them(write_config: Any, run_forge: Any, staleness: int, shown: int) -> None:
    result = run_forge("plan", str(write_config(CONFIG)), f"recipe.max_staleness={staleness}")
    assert f"{shown} (optimizer steps at most)" in result.stdout, result.stderr


def test_a_loss_has_to_correct_for_them() -> None:
    with pytest.raises(UsageError, match=r"recipe.optimizer_steps: loss 'reinforce' does not"):
        Forge().check({**CONFIG, "loss": {"use": "reinforce"}})
