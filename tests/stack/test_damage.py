"""Weights that were damaged on the disk are never trained or sampled with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from forge_core import DataError, Forge, RunFailed
from forge_core.manifest import seal
from forge_testing.runs import lines_of, small_config

from .conftest import metrics_of

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of two stages of two steps with a checkpoint at each; the second has a KL
    penalty towards what the first has made."""
    config = small_config(
        checkpointing={
            "output_dir": str(tmp_path_factory.mktemp("runs")),
            "save_interval": 1,
            "keep": 10,
        },
        stages={
            "sft": {
                "recipe": {"use": "sft"},
                "training": {"steps": 2, "batch_size": 16, "learning_rate": 0.01},
            },
            "grpo": {
                "recipe": {"use": "grpo", "group_size": 8},
                "loss": {"use": "grpo", "kl_coef": 0.1},
                "training": {"steps": 2, "batch_size": 32, "learning_rate": 0.001},
            },
        },
    )
    return Forge().run(config).folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def flip(path: Path) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


MORE = ["stages.grpo.training.steps=3"]


@pytest.mark.parametrize("name", [WEIGHTS, "trainer_state.pt", "state.json", "tokenizer.json"])
def test_a_resume_falls_back_to_the_newest_whole_checkpoint(
    finished: Path, run: Path, tmp_path: Path, name: str
) -> None:
    whole = Path(shutil.copytree(finished, tmp_path / "whole"))
    Forge().run(resume=whole, overrides=MORE)
    flip(run / "checkpoints" / "step_4" / name)
    assert Forge().run(resume=run, overrides=MORE).steps == 5
    warnings = [e["message"] for e in lines_of(run / "events.jsonl") if e["kind"] == "warning"]
    (line,) = [line for line in warnings if "damaged" in line]
    assert f"step_4: {name} is damaged" in line
    assert "going on from step 3 instead" in line
    assert (run / "checkpoints" / "damaged_step_4").is_dir()
    assert metrics_of(run) == metrics_of(whole)
    weights = f"checkpoints/step_5/{WEIGHTS}"
    assert (run / weights).read_bytes() == (whole / weights).read_bytes()


def test_a_resume_without_a_whole_checkpoint_is_refused(run: Path) -> None:
    for place in (run / "checkpoints").iterdir():
        flip(place / WEIGHTS)
    with pytest.raises(DataError, match=r"no checkpoint is whole; .*step_4: model\.safetensors is"):
        Forge().run(resume=run, overrides=MORE)
    assert len(list((run / "checkpoints").glob("step_*"))) == 4


def test_a_stage_does_not_begin_with_damaged_weights(run: Path) -> None:
    """They would be the reference of its KL penalty."""
    flip(run / "checkpoints" / "step_2" / WEIGHTS)
    with pytest.raises(RunFailed, match=r"step_2: model\.safetensors is damaged or was changed"):
        Forge().run(resume=run, overrides=MORE)


def test_the_first_stage_does_not_begin_with_a_damaged_model(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    flip(run / "model" / WEIGHTS)
    with pytest.raises(DataError, match=r"model: model\.safetensors is damaged or was changed"):
        Forge().run(resume=run)


def test_generate_says_which_checkpoint_it_takes_instead(run: Path, run_forge: Any) -> None:
    flip(run / "checkpoints" / "step_4" / WEIGHTS)
    result = run_forge("generate", str(run), "1+2=", "--json", "--temperature", "0")
    assert result.exit_code == 0, result.stderr
    assert '"step": 3' in result.stdout
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"warning: {run}/checkpoints/step_4: {WEIGHTS} is damaged")
    assert line.endswith("; using step 3 instead")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_damaged_checkpoint_that_is_named_is_refused(
    run: Path, run_forge: Any, command: str
) -> None:
    flip(run / "checkpoints" / "step_4" / WEIGHTS)
    for named in ([str(run), "--step", "4"], [str(run / "checkpoints" / "step_4")]):
        result = run_forge(command, *named)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {run}/checkpoints/step_4: {WEIGHTS} is damaged")


def test_a_run_does_not_begin_with_a_damaged_checkpoint_of_another(
    run: Path, small_config: dict[str, Any], run_forge: Any
) -> None:
    copied = Path(shutil.copytree(run / "checkpoints" / "step_4", run.parent / "elsewhere"))
    flip(copied / WEIGHTS)
    small_config["model"] = {"path": str(copied)}
    small_config.pop("eval_dataset")
    with pytest.raises(DataError, match=r"elsewhere: model\.safetensors is damaged"):
        Forge().run(small_config)
    assert run_forge("generate", str(copied), "1+2=").exit_code == 2
    seal(copied)
    assert run_forge("generate", str(copied), "1+2=").exit_code == 0


def test_somebody_elses_manifest_is_no_matter(
    tiny_model: Path, tmp_path: Path, run_forge: Any
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (folder / "manifest.json").write_text('{"files": ["model.safetensors"]}')
    assert run_forge("generate", str(folder), "1+2=", "--max-tokens", "1").exit_code == 0
