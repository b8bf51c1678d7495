"""Runs of a few steps on a real model: its own tokenizer, chat template and weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge_models.folder import load_model, load_tokenizer
from forge_testing.command import run_as_process
from forge_testing.runs import lines_of, untimed, write_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = pytest.mark.real

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Peru": "Lima"}


@pytest.fixture(scope="module")
def big_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For runs: a checkpoint takes 1.6 GB, which pytest would keep."""
    folder = tmp_path_factory.mktemp("runs")
    yield folder
    shutil.rmtree(folder)


def run(folder: Path, config: dict[str, Any], *arguments: str) -> Path:
    """Run the config to its end; returns the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = write_config(config, folder / "config.yaml")
    result = run_as_process("run", str(file), *arguments, cwd=folder, timeout=600)
    assert result.exit_code == 0, result.stderr
    (made,) = (folder / "runs").iterdir()
    return made


def sft_config(model: Path, rows: Path, **sections: Any) -> dict[str, Any]:
    return {
        "name": "sft",
        "model": {"path": str(model)},
        "dataset": {"use": "jsonl", "path": str(rows)},
        "recipe": {"use": "sft"},
        "training": {"steps": 4, "batch_size": 4, "learning_rate": 2e-5},
        **sections,
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four conversations whose answers the model would not give by itself."""
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with file.open("w") as lines:
        for country, capital in CAPITALS.items():
            messages = [
                {"role": "user", "content": f"What is the capital of {country}?"},
                {"role": "assistant", "content": f"Hmm! {capital}, {capital}, {capital}."},
            ]
            lines.write(json.dumps({"messages": messages}) + "\n")
    return file


def test_sft_learns_answers_and_nothing_else(
    smollm2: Path, rows: Path, tokenizer: PreTrainedTokenizerBase, big_folder: Path
) -> None:
    made = run(big_folder / "sft", sft_config(smollm2, rows))
    steps = lines_of(made / "metrics.jsonl")
    losses = [step["loss"] for step in steps]
    assert losses[-1] < losses[0] - 0.3
    # Each answer and the token that ends the turn; neither prompt, template nor padding.
    answers = [f"Hmm! {capital}, {capital}, {capital}.<|im_end|>" for capital in CAPITALS.values()]
    learned = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in answers)
    assert {step["trained_tokens"] for step in steps} == {learned}


@pytest.fixture(scope="module")
def grpo_run(smollm2: Path, big_folder: Path) -> Path:
    """A run of two steps with a checkpoint after the first."""
    question = "What is {a} + {b}?"
    config = {
        "name": "grpo",
        "model": {"path": str(smollm2)},
        "environment": {"use": "single_turn", "system_prompt": "Answer with the number alone."},
        "dataset": {"use": "arithmetic", "low": 1, "high": 9, "template": question},
        "rewards": {"last_number": {}},
        "recipe": {"use": "grpo", "group_size": 4},
        "sampling": {"max_tokens": 10},
        "training": {"steps": 2, "batch_size": 16, "learning_rate": 1e-5},
        "checkpointing": {"save_interval": 1, "keep": 2},
    }
    return run(big_folder / "grpo", config)


def test_grpo_samples_what_it_trains(grpo_run: Path) -> None:
    """Sampler and trainer agree, before an update and after one."""
    for step in lines_of(grpo_run / "metrics.jsonl"):
        assert step["mismatch/logprob_abs_mean"] < 1e-4, step
        assert step["mismatch/logprob_abs_max"] < 1e-2, step
        assert step["ratio"] == pytest.approx(1, abs=1e-3)
        assert 16 < step["trained_tokens"] <= 160


def test_grpo_sees_the_models_own_template(grpo_run: Path) -> None:
    for episode in lines_of(grpo_run / "episodes.jsonl"):
        first, plus, second = episode["task"].partition("+")
        assert plus
        assert episode["prompt"] == (
            "<|im_start|>system\nAnswer with the number alone.<|im_end|>\n"
            f"<|im_start|>user\nWhat is {first} + {second}?<|im_end|>\n<|im_start|>assistant\n"
        )
        assert "<|im_end|>" not in episode["completions"][0]


def test_a_checkpoint_is_a_model_for_transformers(grpo_run: Path, smollm2: Path) -> None:
    import torch

    checkpoint = grpo_run / "checkpoints" / "step_2"
    before, after = load_model(smollm2), load_model(checkpoint)
    assert after.config.tie_word_embeddings
    assert after.lm_head.weight is after.model.embed_tokens.weight
    moved = {
        name: float((weight - dict(before.named_parameters())[name]).abs().max())
        for name, weight in after.named_parameters()
    }
    # AdamW moves no weight by more than about the learning rate a step.
    assert all(0 < change < 4e-5 for change in moved.values()), moved
    chat = load_tokenizer(checkpoint).apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        tokens = after.generate(**chat, max_new_tokens=10, do_sample=False)[0]
    assert "Paris" in load_tokenizer(checkpoint).decode(tokens)


def test_a_resumed_run_has_the_same_numbers(grpo_run: Path) -> None:
    """From the checkpoint of step 1 to the same second step."""
    before = untimed(lines_of(grpo_run / "metrics.jsonl"))
    resumed = grpo_run.with_name("resumed")
    shutil.copytree(grpo_run, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step_2")
    result = run_as_process("run", "--resume", str(resumed), cwd=resumed.parents[1], timeout=600)
    assert result.exit_code == 0, result.stderr
    assert untimed(lines_of(resumed / "metrics.jsonl")) == before


def test_titan_takes_the_step_that_torch_takes(smollm2: Path, rows: Path, big_folder: Path) -> None:
    """Loss and gradient of one step on real text, with tied weights."""
    pytest.importorskip("torchtitan")
    (torch_step, titan_step) = (
        lines_of(
            run(
                big_folder / trainer,
                sft_config(smollm2, rows, training={"steps": 1, "batch_size": 4}),
                *("--trainer", trainer),
            )
            / "metrics.jsonl"
        )[0]
        for trainer in ("torch", "titan")
    )
    for name in ("loss", "grad_norm"):
        assert titan_step[name] == pytest.approx(torch_step[name], rel=1e-3), name
    assert titan_step["trained_tokens"] == torch_step["trained_tokens"]
