"""Whole runs whose rewards, data and environment are functions and classes in a file."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from forge_core import Forge, RewardResult, UsageError
from forge_testing.command import run_in_process
from forge_testing.runs import lines_of, small_config, write_config

FILE = """
    import os

    from forge_core import RewardResult, Task


    def digits(sample, *, wanted: str = "0123456789"):
        found = sum(character in wanted for character in sample.completion)
        return RewardResult(found / 3, metrics={"found": found, "process": os.getpid()})


    def longest(group):
        most = max(len(sample.completion) for sample in group)
        return [float(len(sample.completion) == most) for sample in group]


    class Counting:
        def __init__(self, count: int = 6):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if not 0 <= index < self.count:
                raise IndexError(index)
            return Task(f"count-{index}", f"{index}+1=", answer=str(index + 1))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(dedent(FILE))
    return path


@pytest.fixture
def config(tmp_path: Path, file: Path) -> Path:
    return write_config(
        small_config(
            dataset={"use": "mine.py:Counting"},
            rewards={
                "digits": {"use": "mine.py:digits", "wanted": "12345"},
                "longest": {"use": "mine.py:longest", "weight": 0.1},
            },
            reward_workers={"isolate": True},
            training={"steps": 2, "batch_size": 16, "learning_rate": 0.001},
            checkpointing={"output_dir": str(tmp_path / "runs"), "save_interval": 1},
        ),
        tmp_path / "run.yaml",
    )


def warnings_of(folder: Path) -> list[str]:
    events = lines_of(folder / "events.jsonl")
    return [event["message"] for event in events if event["kind"] == "warning"]


def test_a_run_with_a_file_and_its_resume(config: Path, file: Path) -> None:
    folder = Forge().run(config).folder
    for line in lines_of(folder / "metrics.jsonl"):
        assert line["reward/part/digits"] == pytest.approx(line["reward/digits/found"] / 3)
        assert 0 < line["reward/part/longest"] <= 1
    episode = lines_of(folder / "episodes.jsonl")[0]
    assert episode["metrics"]["reward/digits/found"] == pytest.approx(
        3 * episode["rewards"]["digits"]
    )
    assert episode["task"].startswith("count-")
    (copy,) = (folder / "code").iterdir()
    assert copy.read_text() == file.read_text()

    file.write_text(file.read_text() + "\n# another comment\n")
    more = {"training.steps": 3}
    assert Forge().run(overrides=more, resume=folder).steps == 3
    said = f"{file} has changed, and the run goes on with it as it is now; as it was: "
    assert [line.startswith(said) for line in warnings_of(folder)].count(True) == 1
    assert len(list((folder / "code").iterdir())) == 2

    file.unlink()
    with pytest.raises(UsageError) as caught:
        Forge().run(overrides={"training.steps": 4}, resume=folder)
    assert str(caught.value).startswith(
        f"{file}: no such file, and the run uses it; the run's copy"
    )
    newest = max((folder / "code").iterdir(), key=lambda path: path.stat().st_mtime)
    assert newest.name in str(caught.value)


def test_the_command_adds_a_reward(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    result = run_in_process("run", "run.yaml", "--dry-run", "--reward", "./mine.py:longest")
    assert result.exit_code == 0, result.stderr
    assert "rewards digits+longest" in result.stdout
    result = run_in_process("run", "run.yaml", "--dry-run", "--reward", "mine.py:longst")
    assert result.exit_code == 2
    assert "mine.py has no longst; did you mean longest?" in result.stderr


def test_rewards_handed_over_in_code(tmp_path: Path) -> None:
    def even(sample: Any) -> RewardResult:
        number = sample.completion
        return RewardResult(float(number[-1:] in tuple("02468")), {"length": len(number)})

    settings = small_config(
        rewards={},
        training={"steps": 1, "batch_size": 16},
        checkpointing={"output_dir": str(tmp_path)},
    )
    forge = Forge()
    folder = forge.run(settings, rewards=[even]).folder
    (line,) = lines_of(folder / "metrics.jsonl")
    assert 0 <= line["reward/part/even"] <= 1
    assert line["reward/even/length"] > 0
    with pytest.raises(UsageError, match="handed over in code"):
        Forge().run(overrides={"training.steps": 2}, resume=folder)
    again = Forge().run(overrides={"training.steps": 2}, resume=folder, rewards=[even])
    assert again.steps == 2
