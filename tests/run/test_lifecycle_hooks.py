"""What lifecycle hooks hear of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_core import Episode, Forge, RunStopped, hookimpl
from forge_testing.runs import StopAt, small_config

HOOKS = """
    from pathlib import Path

    from forge_core import Preset, hookimpl

    @hookimpl
    def forge_presets():
        yield Preset(name="acme", path=Path(__file__).with_suffix(".yaml"), summary="a test's")

    @hookimpl
    def forge_step_finished(record):
        with Path(__file__).with_suffix(".heard").open("a") as file:
            print(record.step, file=file)
"""


class Listener:
    """Remembers which episodes were held out."""

    def __init__(self) -> None:
        self.heard: list[tuple[bool, str]] = []

    @hookimpl
    def forge_episode_finished(self, episode: Episode, held_out: bool) -> None:
        self.heard.append((held_out, episode.task.id))


def test_held_out_episodes_are_told_from_trained_ones(tmp_path: Path) -> None:
    listener = Listener()
    Forge(plugins=[listener]).run(
        small_config(
            training={"steps": 1, "batch_size": 8},
            eval_dataset={"use": "arithmetic", "low": 0, "high": 9},
            evaluation={"tasks": 3},
            checkpointing={"output_dir": str(tmp_path)},
        )
    )
    assert [held_out for held_out, _ in listener.heard] == [True] * 3 + [False] * 8 + [True] * 3
    assert len({task for held_out, task in listener.heard if held_out}) == 3


def test_a_presets_hooks_act_after_a_resume_too(fake_distribution: Any, tmp_path: Path) -> None:
    file = fake_distribution("acme-heard", HOOKS)
    config = small_config(
        training={"steps": 2, "batch_size": 8}, checkpointing={"output_dir": str(tmp_path / "runs")}
    )
    file.with_suffix(".yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(RunStopped):
        Forge(plugins=[StopAt(1)]).run("acme")
    (folder,) = (tmp_path / "runs").iterdir()
    Forge().run(resume=folder)
    assert file.with_suffix(".heard").read_text().split() == ["1", "1", "2"]
    Forge().run(config)
    assert file.with_suffix(".heard").read_text().split() == ["1", "1", "2"]
