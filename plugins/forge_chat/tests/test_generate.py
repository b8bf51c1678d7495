"""``forge generate``: text from a model folder, a run and its checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import Forge
from forge_models.folder import load_model, load_tokenizer
from forge_testing.command import CommandResult, run_in_process


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two stages, with checkpoints of steps 1, 2 and 3; the last stage says 3 tokens."""
    model = {
        "characters": "0123456789+=",
        "config": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
        },
    }
    config: dict[str, Any] = {
        "model": {"init": model},
        "dataset": {"use": "arithmetic", "low": 0, "high": 9},
        "rewards": {"exact_match": {}},
        "trackers": {"console": None},
        "checkpointing": {
            "output_dir": str(tmp_path_factory.mktemp("runs")),
            "save_interval": 1,
            "keep": 5,
        },
        "stages": {
            "sft": {"recipe": {"use": "sft"}, "training": {"steps": 2, "batch_size": 4}},
            "grpo": {
                "recipe": {"use": "grpo", "group_size": 2},
                "sampling": {"max_tokens": 3, "temperature": 0.5},
                "training": {"steps": 1, "batch_size": 4},
            },
        },
    }
    return Forge().run(config).folder


def generate(*arguments: object, stdin: str | None = None) -> CommandResult:
    with pytest.MonkeyPatch.context() as patch:
        if stdin is not None:
            patch.setattr(sys, "stdin", StringIO(stdin))
        return run_in_process("generate", *map(str, arguments))


def rows(result: CommandResult) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def to_rounding(row: dict[str, Any]) -> dict[str, Any]:
    """The row to compare with one from another batch: everything is equal, logprobs nearly.

    Matrix products of another size may add in another order, so logprobs differ in the last digits.
    """
    return {**row, "logprobs": pytest.approx(row["logprobs"], abs=1e-5)}


def greedy(model: Path, tokens: list[int], count: int) -> list[int]:
    """The most probable continuation, by plain forward passes."""
    policy = load_model(model)
    for _ in range(count):
        with torch.no_grad():
            tokens = [*tokens, int(policy(input_ids=torch.tensor([tokens])).logits[0, -1].argmax())]
    return tokens[-count:]


def test_one_prompt_gives_its_text_and_nothing_else(tiny_model: Path) -> None:
    result = generate(tiny_model, "abc", "--temperature", 0, "--max-tokens", 5)
    tokenizer = load_tokenizer(tiny_model)
    expected = tokenizer.decode(greedy(tiny_model, tokenizer.encode("abc"), 5))
    assert result.stdout == f"{expected}\n"
    assert result.stderr == (
        "the completion was cut off at sampling.max_tokens=5 or the model's window\n"
    )


def test_a_json_line_has_all_there_is_to_know(tiny_model: Path) -> None:
    result = generate(tiny_model, "abc", "x=1", "-n", 2, "--seed", 7, "--max-tokens", 4, "--json")
    found = rows(result)
    assert [row["prompt"] for row in found] == ["abc", "abc", "x=1", "x=1"]
    policy, tokenizer = load_model(tiny_model), load_tokenizer(tiny_model)
    for row in found:
        prompt = tokenizer.encode(row["prompt"])
        with torch.no_grad():
            logits = policy(input_ids=torch.tensor([prompt + row["tokens"]])).logits[0]
        logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        picked = logprobs.gather(-1, torch.tensor(row["tokens"]).unsqueeze(-1)).squeeze(-1)
        assert row["logprobs"] == pytest.approx(picked.tolist(), abs=1e-4)
        assert row["text"] == tokenizer.decode(row["tokens"], skip_special_tokens=True)
        assert row["finish_reason"] in {"stop", "length"}
        assert row["model"] == str(tiny_model)
        assert row["step"] is None
    assert found[0]["tokens"] != found[1]["tokens"]


def test_a_seed_gives_a_prompt_its_samples_wherever_it_stands(tiny_model: Path) -> None:
    options = ("--seed", 3, "--max-tokens", 8, "--json")
    alone = rows(generate(tiny_model, "second", *options))
    among = rows(generate(tiny_model, "first", "second", *options))
    assert among[1] == to_rounding(alone[0])
    assert rows(generate(tiny_model, "second", *options[2:]))[0]["tokens"] != alone[0]["tokens"]


def test_several_completions_stand_beneath_their_prompts(tiny_model: Path) -> None:
    result = generate(tiny_model, "one", "two", "--seed", 1, "-n", 2, "sampling.max_tokens=3")
    lines = result.stdout.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["one", "two"]
    assert len(lines) == 6


def test_a_run_speaks_with_its_newest_checkpoint_and_its_own_config(run_folder: Path) -> None:
    (row,) = rows(generate(run_folder, "1+2=", "--temperature", 0, "--json"))
    checkpoint = run_folder / "checkpoints" / "step_3"
    assert row["step"] == 3
    assert row["model"] == str(checkpoint)
    assert len(row["tokens"]) <= 3
    prompt = load_tokenizer(checkpoint).encode("1+2=")
    assert row["tokens"] == greedy(checkpoint, prompt, len(row["tokens"]))


def test_a_step_of_a_run_and_its_folder_are_the_same(run_folder: Path) -> None:
    """With the config of the stage that it is of, where no other length was set."""
    options = ("1+2=", "--seed", 0, "--json")
    (row,) = rows(generate(run_folder, *options, "--step", 1))
    assert row["step"] == 1
    (same,) = rows(generate(run_folder / "checkpoints" / "step_1", *options))
    assert same == row
    assert len(row["tokens"]) > 3 or row["finish_reason"] == "stop"


def test_a_run_needs_only_its_generator(run_folder: Path, tmp_path: Path) -> None:
    """It was trained with what is not installed here."""
    moved = tmp_path / "moved"
    (moved / "checkpoints").mkdir(parents=True)
    (moved / "checkpoints" / "step_3").symlink_to(run_folder / "checkpoints" / "step_3")
    config = (run_folder / "config.yaml").read_text()
    (moved / "config.yaml").write_text(config.replace("use: arithmetic", "use: of_somebody_else"))
    (row,) = rows(generate(moved, "1+2=", "--temperature", 0, "--json"))
    assert len(row["tokens"]) <= 3


def test_the_environment_counts_as_far_as_it_speaks_of_sampling(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_EVAL_DATASET__SIZE", "10")  # of no dataset named here
    monkeypatch.setenv("FORGE_MODEL__PATH", "/elsewhere")
    monkeypatch.setenv("FORGE_STAGES__GRPO__SAMPLING__MAX_TOKENS", "1")
    (row,) = rows(generate(run_folder, "1+2=", "--json", "model.dtype=bfloat16"))
    assert len(row["tokens"]) == 1
    assert row["model"].startswith(str(run_folder))


def test_prompts_from_a_file_and_from_standard_input(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\nsecond = 2\n")
    options = ("--seed", 0, "--max-tokens", 2, "--json")
    from_file = rows(generate(tiny_model, "--input", path, *options))
    assert [row["prompt"] for row in from_file] == ["first", "second = 2"]
    piped = rows(generate(tiny_model, *options, stdin=path.read_text()))
    assert piped == from_file
    assert rows(generate(tiny_model, "-i", "-", *options, stdin=path.read_text())) == from_file


def test_text_is_a_users_message_where_there_is_a_template(
    tiny_chat_model: Path, tiny_model: Path, tmp_path: Path
) -> None:
    options = ("--temperature", 0, "--max-tokens", 6, "--json")
    (chat,) = rows(generate(tiny_chat_model, "hi", *options))
    (rendered,) = rows(generate(tiny_model, "<user>hi;<assistant>", *options))
    assert chat["tokens"] == rendered["tokens"]
    (raw,) = rows(generate(tiny_chat_model, "hi", "--raw", *options))
    (plain,) = rows(generate(tiny_model, "hi", *options))
    assert raw["tokens"] == plain["tokens"]

    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    path = tmp_path / "chats.jsonl"
    path.write_text(f'"hi"\n{json.dumps({"messages": messages})}\n{{"prompt": "hi", "id": 3}}\n')
    text, spoken, prompt = rows(generate(tiny_chat_model, "--input", path, *options))
    assert text == prompt == to_rounding(chat)
    assert spoken["prompt"] == messages
    (rendered,) = rows(generate(tiny_model, "<system>be;<user>hi;<assistant>", *options))
    assert spoken["tokens"] == rendered["tokens"]


@pytest.mark.parametrize(
    ("row", "lost"),
    [
        ({"messages": [{"role": "user", "content": "hi", "name": "ann"}]}, "'name' of messages[0]"),
        ({"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "add"}]}, "'tools'"),
    ],
)
def test_what_the_template_does_not_use_is_named(
    tiny_chat_model: Path, tmp_path: Path, row: dict[str, Any], lost: str
) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(row))
    result = generate(tiny_chat_model, "--input", path)
    assert result.exit_code == 2
    assert f"{path}:1: the model's chat template does not use {lost}" in result.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("3", 'needs text, or an object with "prompt" (text) or "messages" (a chat)'),
        ('{"messages": [{"role": "boss", "content": "x"}]}', "needs a role (system, user,"),
        ('{"messages": [{"role": "user"}]}', "a content that is text"),
        ('{"prompt": "x", "tools": [{"name": "add"}]}', "a plain prompt has no place for tools"),
    ],
)
def test_a_wrong_line_is_named(tiny_model: Path, tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    result = generate(tiny_model, "--input", path)
    assert result.exit_code == 2
    assert f"{path}:2: " in result.stderr
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["{empty}", "x"], "{empty}: neither a model folder (with config.json) nor a run folder"),
        (["nowhere", "x"], "nowhere: no such folder"),
        (["Some/Model", "x"], "a model of a hub has to be downloaded first (hf download Some/Mo"),
        (["{model}", "x", "--step", "3"], "--step 3: {model} is no run folder"),
        (["{run}", "1", "--step", "9"], "--step 9: {run} has no such checkpoint (it has: 1, 2, 3)"),
        (["{model}", "x", "model.path=y"], "the model is what was named first"),
        (["{model}", "x", "training.seed=3"], "training.seed=3: only generator, sampling, runtime"),
        (["{model}", "x", "--generator", "tortch"], "no generator is called 'tortch'"),
        (["{model}", "x", "--top-p", "2"], "sampling.top_p"),
        (["{model}", "x", "sampling.temprature=1"], "did you mean sampling.temperature?"),
        (["{model}", "x", "--input", "y"], "give prompts or --input, not both"),
        (["{model}", "--input", "{empty}/none"], "{empty}/none: No such file or directory"),
        (["{model}"], "standard input: holds no prompt"),
        (["{model}", "fits", "x" * 300], "prompt 2: the prompt's 300 tokens leave no room"),
        (["{model}", "fits", "ü"], "prompt 2: the model's tokenizer cannot encode 'ü'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tiny_model: Path, run_folder: Path, tmp_path: Path, arguments: list[str], error: str
) -> None:
    places = {"model": tiny_model, "run": run_folder, "empty": tmp_path}
    result = generate(*(argument.format(**places) for argument in arguments), stdin="")
    assert result.exit_code == 2
    assert error.format(**places) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: young\n")
    result = generate(tmp_path, "x")
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path}: this run has no checkpoint yet\n"


def test_the_commands_help_imports_nothing_heavy() -> None:
    program = "import sys; from forge_core.cli import main; main(sys.argv[1:]); "
    program += "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)"
    for command in ("generate", "chat"):
        subprocess.run([sys.executable, "-c", program, command, "--help"], check=True)
