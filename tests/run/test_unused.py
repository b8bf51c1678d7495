"""Keys that do nothing are refused or warned of; those of a config that makes sense are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_core import Forge
from forge_core.config.effective import to_yaml
from forge_run.unused import unused_keys
from forge_testing.runs import lines_of, small_config

EVAL = {"use": "arithmetic", "low": 0, "high": 9, "split": "test"}


def supervised(**sections: Any) -> dict[str, Any]:
    """One stage of SFT, without rewards and sampling unless they are given."""
    config = small_config(
        recipe={"use": "sft"}, training={"steps": 1, "batch_size": 4, "learning_rate": 0.01}
    )
    del config["rewards"], config["sampling"]
    return config | sections


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"eval_dataset": EVAL, "evaluation": {"interval": 1}},
            "eval_dataset, evaluation.interval: stage 'sft' has no rewards",
        ),
        ({"eval_dataset": EVAL}, "eval_dataset: stage 'sft' has no rewards"),
        (
            {"evaluation": {"interval": 1, "samples": 2}},
            "evaluation.interval, evaluation.samples: stage 'sft' has no eval_dataset",
        ),
        (
            {"evaluation": {"tasks": 5}, "rewards": {"exact_match": {}}},
            "evaluation.tasks: stage 'sft' has no eval_dataset",
        ),
        (
            {"eval_dataset": EVAL, "rewards": {"exact_match": {}}, "environment": None},
            "environment: evaluation with eval_dataset (stage 'sft') needs this section",
        ),
    ],
)
def test_an_evaluation_that_never_happens_is_refused(
    write_config: Any,
    run_forge: Any,
    tmp_path: Path,
    sections: dict[str, Any],
    message: str,
) -> None:
    output = tmp_path / "output"
    file = str(write_config(supervised(**sections, checkpointing={"output_dir": str(output)})))
    for arguments in (["run", file], ["run", file, "--dry-run"]):
        result = run_forge(*arguments)
        assert result.exit_code == 2, result.stdout
        (line,) = result.stderr.splitlines()
        assert message in line
        assert not output.exists()


def test_plan_refuses_it_too(write_config: Any, run_forge: Any) -> None:
    result = run_forge("plan", str(write_config(supervised(eval_dataset=EVAL))))
    assert result.exit_code == 2
    assert "eval_dataset: stage 'sft' has no rewards" in result.stderr


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"rewards": {"exact_match": {}}}, ["rewards"]),
        ({"reward_workers": {"replicas": 2}}, ["reward_workers.replicas"]),
        ({"sampling": {"temperature": 0.7}}, ["sampling.temperature"]),
        ({"generator": {"max_batch_rows": 8}}, ["generator.max_batch_rows"]),
        ({"generator": {"use": "vllm", "engine": {"seed": 1}}}, ["generator"]),
        ({"environment": {"system_prompt": "Add."}}, ["environment.system_prompt"]),
        ({"transport": {"use": "shm"}}, ["transport"]),
        ({"replay_buffer": {"isolate": True}}, ["replay_buffer.isolate"]),
        (
            {
                "eval_dataset": EVAL,
                "rewards": {"exact_match": {}},
                "sampling": {"max_tokens": 3, "temperature": 0.7},
                "evaluation": {"samples": 4},
            },
            ["sampling.temperature", "evaluation.samples"],
        ),
        (
            {
                "recipe": {"use": "grpo", "group_size": 4},
                "rewards": {"exact_match": {}},
                "sampling": {"temperature": 0.7},
                "generator": {"routing": "prefix"},
            },
            ["generator.routing"],
        ),
    ],
)
def test_keys_without_effect_are_named(sections: dict[str, Any], keys: list[str]) -> None:
    config = Forge().resolve(supervised(**sections))
    named = [key for line in unused_keys(config) for key in line.split(":")[0].split(", ")]
    assert sorted(named) == sorted(keys)


def test_presets_have_none() -> None:
    app = Forge()
    for preset in app.plugins.catalog.presets("run"):
        assert unused_keys(app.resolve(preset.name)) == [], preset.name


def test_a_key_that_one_stage_of_several_uses_is_used() -> None:
    changes: dict[str, Any] = {"sampling.temperature": 0.9, "generator.max_batch_rows": 8}
    assert unused_keys(Forge().resolve("quickstart", changes)) == []


def test_a_key_of_a_stage_that_does_not_use_it_is_named() -> None:
    changes: dict[str, Any] = {"stages.sft.sampling.temperature": 0.9}
    (line,) = unused_keys(Forge().resolve("quickstart", changes))
    assert line.startswith("stages.sft.sampling.temperature: does nothing: recipe 'sft'")


def test_a_model_that_no_stage_holds_is_named() -> None:
    teacher: dict[str, Any] = {"models.teacher.path": "/models/teacher"}
    (line,) = unused_keys(Forge().resolve("quickstart", teacher))
    assert line == (
        "models.teacher.path: does nothing: no reference and no service of a recipe holds this "
        "model"
    )
    held = teacher | {
        "stages.grpo.reference": {"use": "torch", "model": "teacher"},
        "stages.grpo.loss.kl_coef": 0.1,
    }
    assert unused_keys(Forge().resolve("quickstart", held)) == []


def test_a_whole_config_names_what_the_short_one_names(tmp_path: Path) -> None:
    """``config.yaml`` holds every key; those that were not set are no reason for a warning."""
    for sections in ({}, {"reward_workers": {"replicas": 2}}):
        config = Forge().resolve(supervised(**sections))
        (tmp_path / "config.yaml").write_text(to_yaml(config.tree))
        again = Forge().resolve(tmp_path / "config.yaml")
        assert unused_keys(again) == unused_keys(config)


def test_one_stage_of_the_quickstart_alone(run_forge: Any, tmp_path: Path) -> None:
    for stage in ("sft", "grpo"):
        shown = run_forge("config", "show", "quickstart", "--stage", stage).stdout
        config = Forge().resolve(yaml.safe_load(shown))
        assert unused_keys(config) == []


def test_the_dry_run_and_the_run_say_so(write_config: Any, run_forge: Any, tmp_path: Path) -> None:
    config = supervised(
        replay_buffer={"isolate": True}, checkpointing={"output_dir": str(tmp_path / "runs")}
    )
    file = str(write_config(config))
    warning = "replay_buffer.isolate: does nothing: recipe 'sft' (stage 'sft') samples nothing"
    dry = run_forge("run", file, "--dry-run")
    assert dry.exit_code == 0
    assert f"  warning: {warning}" in dry.stdout
    assert warning in run_forge("plan", file).stdout
    result = run_forge("run", file)
    assert result.exit_code == 0, result.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    said = [event["message"] for event in lines_of(folder / "events.jsonl")]
    assert any(message.startswith(warning) for message in said)
    assert json.loads((folder / "summary.json").read_text())["evaluations"] == []


def test_an_environment_that_nothing_uses_is_warned_of_and_not_refused() -> None:
    """The model has no chat template for the system prompt, and needs none."""
    config, _ = Forge().check(supervised(environment={"system_prompt": "Add."}))
    (line,) = unused_keys(config)
    assert line.startswith("environment.system_prompt: does nothing")
