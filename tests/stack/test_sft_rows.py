"""Runs of recipe ``sft`` on rows that are too long, or that the chat template does not render."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import DataError, Forge
from forge_models.folder import load_tokenizer
from forge_testing.runs import lines_of

WINDOW = 256


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """``train(rows, model=..., **overrides)``: the records of a run over these rows."""

    def train(
        rows: list[dict[str, Any]], overrides: dict[str, Any], model: Path = tiny_model
    ) -> list[dict[str, Any]]:
        data = tmp_path / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "model": {"path": str(model)},
            "recipe": {"use": "sft"},
            "dataset": {"use": "jsonl", "path": str(data)},
            "training": {"batch_size": 4, "learning_rate": 0.001},
            "checkpointing": {"output_dir": str(tmp_path / "runs")},
        }
        summary = Forge().run(config, overrides)
        return lines_of(summary.folder / "metrics.jsonl")

    return train


SHORT = {"prompt": "1+1=", "response": "2"}
LONG = {"prompt": "1+1=", "response": "two, and not three" * 3}


@pytest.mark.parametrize(("epochs", "steps"), [(1, 4), (2.5, 10)])
def test_an_epoch_is_a_pass_over_the_rows_that_fit(
    train: Callable[..., list[dict[str, Any]]], epochs: float, steps: int
) -> None:
    overrides = {"training.num_epochs": epochs, "recipe.max_length": 20}
    records = train([SHORT, LONG] * 16, overrides)
    # It was counted over all rows: 8 steps, 1.97 epochs.
    assert len(records) == steps
    assert records[-1]["epoch"] == pytest.approx(epochs, abs=0.15)
    assert sum(record["rows_dropped"] for record in records) > 0


def test_rows_that_are_cut_all_count(train: Callable[..., list[dict[str, Any]]]) -> None:
    overrides = {
        "training.num_epochs": 1,
        "recipe.max_length": 20,
        "recipe.overlong": "truncate",
    }
    assert len(train([SHORT, LONG] * 8, overrides)) == 4


def test_no_row_fits(train: Callable[..., list[dict[str, Any]]]) -> None:
    with pytest.raises(DataError, match=r"recipe.max_length: no row of the dataset fits into 20"):
        train([LONG] * 4, {"training.num_epochs": 1, "recipe.max_length": 20})


def test_a_row_longer_than_the_window_is_named_before_the_first_step(
    train: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    beyond = {"prompt": "x" * WINDOW, "response": "y"}
    rows = [SHORT] * 7 + [beyond]
    with pytest.raises(
        DataError, match=rf"'rows.jsonl:8' has 258 tokens, and the model's window is {WINDOW} "
    ):
        train(rows, {"training.steps": 2})
    assert not any(lines_of(file) for file in (tmp_path / "runs").glob("*/metrics.jsonl"))
    assert len(train(rows, {"training.steps": 2, "recipe.max_length": WINDOW})) == 2


@pytest.mark.parametrize("dry", [True, False])
def test_a_chat_that_cannot_be_a_row_is_named_before_anything_starts(
    tiny_chat_model: Path, tmp_path: Path, run_forge: Any, write_config: Any, dry: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_chat_model.iterdir():
        (model / file.name).symlink_to(file)
    tokenizer = load_tokenizer(tiny_chat_model)
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "chat_template.jinja").write_text(str(tokenizer.chat_template))
    chat = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"messages": chat}) + "\n")
    config = {
        "model": {"path": str(model)},
        "recipe": {"use": "sft"},
        "dataset": {"use": "jsonl", "path": str(data)},
        "training": {"batch_size": 1, "steps": 1},
        "checkpointing": {"output_dir": str(tmp_path / "runs")},
    }
    result = run_forge("run", str(write_config(config)), *(["--dry-run"] if dry else []))
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "task 'rows.jsonl:1': the model's chat template renders the answered chat" in line
    assert "<assistant><think>'" in line
    assert "<assistant>2;'" in line
    assert not (tmp_path / "runs").exists()
