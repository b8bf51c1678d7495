"""Whole runs: what they leave behind, that they repeat, and that they go on where they were."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_core import Forge, RewardComponent, RunStopped, Settings, hookimpl
from forge_testing.command import process_environ
from forge_testing.runs import Run, StopAt, lines_of, until, write_config

from .conftest import metrics_of


def test_two_stages_leave_what_is_promised(small_config: dict[str, Any]) -> None:
    summary = Forge().run(small_config)
    assert summary.outcome == "finished"
    assert summary.exit_code == 0
    assert summary.steps == 6
    moments = [(score.stage, score.moment, score.step) for score in summary.evaluations]
    assert moments == [
        ("sft", "before", 0),
        ("sft", "after", 3),
        ("grpo", "before", 3),
        ("grpo", "after", 6),
    ]
    # The next stage starts from the weights the one before it ended with.
    assert summary.evaluations[1].score == summary.evaluations[2].score
    folder = summary.folder
    rows = metrics_of(folder)
    assert [(row["step"], row["stage"], row["stage_step"]) for row in rows] == [
        (1, "sft", 1),
        (2, "sft", 2),
        (3, "sft", 3),
        (4, "grpo", 1),
        (5, "grpo", 2),
        (6, "grpo", 3),
    ]
    for row in rows[3:]:
        assert 0 <= row["mismatch/logprob_abs_max"] < 1e-4
        assert row["staleness/max"] == 0
        assert row["groups/total"] == 4
    kinds = [event["kind"] for event in lines_of(folder / "events.jsonl")]
    assert kinds.count("stage_started") == 2
    assert kinds.count("evaluation") == 4
    assert {row["step"] for row in lines_of(folder / "episodes.jsonl")} == {4, 5, 6}
    lock = yaml.safe_load((folder / "run.lock").read_text())
    assert lock["plugins"]["forge-rl-grpo:grpo"]["status"] == "ok"
    assert lock["packages"]["torch"]
    assert (folder / "checkpoints" / "step_6" / "model.safetensors").is_file()
    assert summary.checkpoint == folder / "checkpoints" / "step_6"


def test_the_checkpoint_is_a_hugging_face_model(small_config: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = Forge().run(small_config, ["stages.grpo=null"]).checkpoint
    assert checkpoint is not None
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert model(**tokenizer("1+2=", return_tensors="pt")).logits.shape[-1] >= len(tokenizer)


def test_one_seed_gives_one_run(small_config: dict[str, Any]) -> None:
    first, second = Forge().run(small_config), Forge().run(small_config)
    assert first.folder != second.folder
    assert metrics_of(first.folder) == metrics_of(second.folder)
    other = Forge().run(small_config, ["training.seed=1"])
    assert metrics_of(other.folder) != metrics_of(first.folder)


def test_the_written_config_runs_again_as_it_stands(small_config: dict[str, Any]) -> None:
    first = Forge().run(small_config)
    second = Forge().run(first.folder / "config.yaml")
    assert metrics_of(first.folder) == metrics_of(second.folder)
    assert (second.folder / "config.yaml").read_text() == (first.folder / "config.yaml").read_text()


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_run_gives_the_same_numbers(
    small_config: dict[str, Any], stop: int, kl: float
) -> None:
    """Stopped in the first stage and in the second, with and without a reference model."""
    small_config["checkpointing"]["save_interval"] = 1
    small_config["stages"]["grpo"]["loss"] = {"use": "grpo", "kl_coef": kl}
    small_config["training"] = {"warmup_steps": 2, "schedule": "cosine"}
    whole = Forge().run(small_config)
    with pytest.raises(RunStopped, match=f"stopped at step {stop}"):
        Forge(plugins=[StopAt(stop)]).run(small_config)
    (folder,) = set(Path(small_config["checkpointing"]["output_dir"]).iterdir()) - {whole.folder}
    resumed = Forge().run(resume=folder)
    assert resumed.folder == folder
    assert resumed.outcome == "finished"
    assert metrics_of(folder) == metrics_of(whole.folder)
    names = {path.name for path in (whole.folder / "checkpoints").iterdir()}
    assert names == {path.name for path in (folder / "checkpoints").iterdir()}
    weights = "checkpoints/step_6/model.safetensors"
    assert (folder / weights).read_bytes() == (whole.folder / weights).read_bytes()


def test_a_stop_short_of_the_target_says_so(
    small_config: dict[str, Any], write_config: Any, run_forge: Any
) -> None:
    result = run_forge("run", str(write_config(small_config)), app=Forge(plugins=[StopAt(1)]))
    assert result.exit_code == 3
    assert "stopped at step 1" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_after_a_checkpoint(
    small_config: dict[str, Any], runs: Callable[..., Run], number: int
) -> None:
    small_config["stages"]["sft"]["training"]["steps"] = 100_000
    small_config.pop("eval_dataset")
    run = runs(small_config)
    run.until_step(1)
    run.process.send_signal(number)
    assert run.end() == 130, run.printed
    assert f"forge run --resume {run.folder}" in run.printed
    (checkpoint,) = (run.folder / "checkpoints").glob("step_*")
    done = int(checkpoint.name.removeprefix("step_"))
    run.resume(f"stages.sft.training.steps={done + 2}")
    assert run.end() == 0, run.printed
    assert [row["step"] for row in metrics_of(run.folder)] == list(range(1, done + 2 + 3 + 1))


def test_a_lost_terminal_ends_the_run_after_a_checkpoint(
    small_config: dict[str, Any], tmp_path: Path
) -> None:
    """As when an ssh connection breaks: SIGHUP, and nowhere left to write to."""
    small_config["stages"] = {"sft": small_config["stages"]["sft"]}
    small_config["stages"]["sft"]["training"]["steps"] = 100_000
    small_config.pop("eval_dataset")
    file = write_config(small_config, tmp_path / "config.yaml")
    child, terminal = pty.fork()
    if child == 0:
        command = [sys.executable, "-m", "forge_core", "run", str(file)]
        os.execve(sys.executable, command, {**process_environ(), "TERM": "xterm"})
    output = Path(small_config["checkpointing"]["output_dir"])
    printed = b""

    def two_steps() -> bool:
        nonlocal printed
        while select.select([terminal], [], [], 0)[0]:
            printed += os.read(terminal, 65_536)
        return any(len(lines_of(each)) >= 2 for each in output.glob("*/metrics.jsonl"))

    try:
        until(two_steps)
    finally:
        os.close(terminal)  # the kernel sends SIGHUP
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130, printed
    (folder,) = output.iterdir()
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "interrupted"
    (checkpoint,) = (folder / "checkpoints").glob("step_*")
    done = int(checkpoint.name.removeprefix("step_"))
    assert len(metrics_of(folder)) == done
    assert (
        Forge().run(resume=folder, overrides=[f"stages.sft.training.steps={done + 1}"]).steps
        == done + 1
    )


class Constant:
    """A reward that tells nothing apart."""

    @hookimpl
    def forge_rewards(self) -> Any:
        yield RewardComponent(
            name="constant",
            settings=Settings,
            build=lambda settings, context: lambda sample: 1.0,
            summary="always 1",
        )


def test_steps_without_signal_change_nothing_and_say_so(small_config: dict[str, Any]) -> None:
    small_config["stages"].pop("sft")
    small_config["rewards"] = {"constant": {}}
    small_config["stages"]["grpo"]["training"]["steps"] = 10
    summary = Forge(plugins=[Constant()]).run(small_config)
    rows = metrics_of(summary.folder)
    assert [row["groups/zero_variance"] for row in rows] == [4] * 10
    assert {(row["loss"], row["trained_tokens"]) for row in rows} == {(0.0, 0.0)}
    assert all(row["mismatch/logprob_abs_max"] < 1e-4 for row in rows)
    events = lines_of(summary.folder / "events.jsonl")
    warnings = [event["message"] for event in events if event["kind"] == "warning"]
    assert "nothing is learned" in warnings[0]
    first = (summary.folder / "model" / "model.safetensors").read_bytes()
    assert (summary.folder / "checkpoints/step_10/model.safetensors").read_bytes() == first
