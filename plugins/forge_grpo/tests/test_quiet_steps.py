"""Steps without a signal are counted across a resume."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from forge_core import Forge, RewardComponent, RewardSample, RunStopped, Settings, hookimpl
from forge_testing.runs import StopAt, small_config


class Constant:
    """Pays every completion the same."""

    def __call__(self, sample: RewardSample) -> float:
        return 1.0


class WithConstant:
    @hookimpl
    def forge_rewards(self) -> Iterable[RewardComponent]:
        yield RewardComponent(
            name="constant",
            settings=Settings,
            build=lambda settings, context: Constant(),
            summary="the same for all",
        )


def test_the_count_survives_a_resume(tmp_path: Path) -> None:
    config = small_config(
        recipe={"use": "grpo", "group_size": 2},
        rewards={"constant": {}},
        sampling={"max_tokens": 1},
        training={"steps": 12, "batch_size": 2},
        checkpointing={"save_interval": 7, "output_dir": str(tmp_path)},
    )
    with pytest.raises(RunStopped):
        Forge(plugins=[WithConstant(), StopAt(8)]).run(config)
    (folder,) = tmp_path.iterdir()
    state = json.loads((folder / "checkpoints" / "step_7" / "state.json").read_text())
    assert state["recipe_state"]["steps_without_signal"] == 7
    summary = Forge(plugins=[WithConstant()]).run(resume=folder)
    assert summary.warnings == (
        "no group had two different rewards for 10 steps (mean 1.00): nothing is learned; the "
        "tasks are too easy, too hard, or the reward is constant",
    )
