"""Runs whose datasets have prompts that the model cannot answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_core import DataError, Forge, RunStopped
from forge_testing.runs import StopAt, lines_of, small_config, untimed

WINDOW = 16
STEPS = 4


def write(path: Path, long: int, short: int = 8) -> Path:
    """Sums of one-digit numbers, the first of them too long for the window."""
    rows = ["1+" * WINDOW] * long + [f"{digit}+1=" for digit in range(short)]
    path.write_text("".join(json.dumps({"prompt": row, "answer": "2"}) + "\n" for row in rows))
    return path


def config(tmp_path: Path, data: Path, **recipe: Any) -> dict[str, Any]:
    return small_config(
        {"max_position_embeddings": WINDOW},
        dataset={"use": "jsonl", "path": str(data)},
        recipe={"use": "grpo", "group_size": 4, **recipe},
        training={"steps": STEPS, "batch_size": 16, "learning_rate": 0.001},
        checkpointing={"output_dir": str(tmp_path / "runs"), "save_interval": 1},
    )


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_prompt_beyond_the_window_is_left_out_and_counted(
    tmp_path: Path, max_staleness: int
) -> None:
    data = write(tmp_path / "data.jsonl", long=2)
    summary = Forge().run(config(tmp_path, data, max_staleness=max_staleness))
    steps = lines_of(summary.folder / "metrics.jsonl")
    assert [step["groups/total"] for step in steps] == [4] * STEPS  # others take their places
    assert 2 <= sum(step["prompts/dropped"] for step in steps) <= 4  # in two epochs
    warnings = [
        event["message"]
        for event in lines_of(summary.folder / "events.jsonl")
        if event["kind"] == "warning" and "overlong_prompts" in event["message"]
    ]
    (warning,) = warnings
    assert "task 'data.jsonl:" in warning
    assert f"leave no room in the window of {WINDOW}" in warning


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_resumed_run_leaves_out_the_same(tmp_path: Path, max_staleness: int) -> None:
    data = write(tmp_path / "data.jsonl", long=3)
    settings = config(tmp_path, data, max_staleness=max_staleness)
    with pytest.raises(RunStopped):
        Forge(plugins=[StopAt(3)]).run(settings)
    (folder,) = (tmp_path / "runs").iterdir()
    Forge().run(resume=folder)
    whole = Forge().run(settings)
    dropped = [
        [step["prompts/dropped"] for step in lines_of(each / "metrics.jsonl")]
        for each in (folder, whole.folder)
    ]
    assert dropped[0] == dropped[1]
    if not max_staleness:
        records = [untimed(lines_of(each / "metrics.jsonl")) for each in (folder, whole.folder)]
        assert records[0] == records[1]


def test_an_epoch_is_one_of_the_prompts_that_can_be_answered(tmp_path: Path) -> None:
    settings = config(tmp_path, write(tmp_path / "data.jsonl", long=8, short=8))
    settings["training"] = {"num_epochs": 1, "batch_size": 16}
    summary = Forge().run(settings)
    assert summary.steps == 2  # of 4 prompts each; all 16 would be 4 steps


def test_without_any_prompt_for_an_epoch_nothing_starts(tmp_path: Path) -> None:
    settings = config(tmp_path, write(tmp_path / "data.jsonl", long=3, short=0))
    settings["training"] = {"num_epochs": 1, "batch_size": 16}
    with pytest.raises(DataError, match="none of the 3 prompts can be answered; the first: task"):
        Forge().run(settings)
    assert not (tmp_path / "runs").exists()


def test_fail_names_the_task_before_the_first_step(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", long=1)
    settings = config(tmp_path, data, overlong_prompts="fail")
    with pytest.raises(DataError, match=r"task 'data.jsonl:1': the prompt's 32 tokens leave no"):
        Forge().run(settings)
    assert not list((tmp_path / "runs").iterdir())  # nothing was trained, so nothing is kept


def test_fail_looks_at_held_out_prompts_too(tmp_path: Path) -> None:
    held_out = write(tmp_path / "held_out.jsonl", long=1)
    settings = config(tmp_path, write(tmp_path / "a.jsonl", long=0), overlong_prompts="fail")
    settings["eval_dataset"] = {"use": "jsonl", "path": str(held_out)}
    with pytest.raises(DataError, match=r"task 'held_out.jsonl:1': .*overlong_prompts=drop"):
        Forge().run(settings)


def test_a_held_out_prompt_beyond_the_window_is_not_in_the_score(tmp_path: Path) -> None:
    held_out = write(tmp_path / "held_out.jsonl", long=1, short=4)
    settings = config(tmp_path, write(tmp_path / "data.jsonl", long=0))
    settings["eval_dataset"] = {"use": "jsonl", "path": str(held_out)}
    settings["training"]["steps"] = 1
    summary = Forge().run(settings)
    assert [each.tasks for each in summary.evaluations] == [4, 4]
    messages = [event["message"] for event in lines_of(summary.folder / "events.jsonl")]
    assert any("1 of 5 tasks of the evaluation cannot be answered" in each for each in messages)


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_dataset_without_any_prompt_that_fits_fails(tmp_path: Path, max_staleness: int) -> None:
    data = write(tmp_path / "data.jsonl", long=3, short=0)
    with pytest.raises(DataError, match="none of the 3 prompts can be answered; the first: task"):
        Forge().run(config(tmp_path, data, max_staleness=max_staleness))
