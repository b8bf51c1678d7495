"""Everything a person can get wrong ends in one line that says what, where, and what is allowed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, LossComponent, RewardComponent, Settings, hookimpl


class Misbehaving:
    """Rewards that fail in the ways rewards fail."""

    @hookimpl
    def forge_rewards(self) -> Any:
        yield RewardComponent(
            name="raises", settings=NoSettings, build=build_raises, summary="raises"
        )
        yield RewardComponent(name="hangs", settings=NoSettings, build=build_hangs, summary="hangs")


class NoSettings(Settings):
    pass


def build_raises(settings: NoSettings, context: Any) -> Any:
    return raises


def build_hangs(settings: NoSettings, context: Any) -> Any:
    return hangs


def raises(sample: Any) -> float:
    raise ValueError("no such unit: 'parsec'")


def hangs(sample: Any) -> float:
    while True:
        pass


@pytest.fixture
def fails(write_config: Any, run_forge: Any) -> Callable[..., str]:
    """Run a config that cannot work; the one line on standard error."""

    def run(config: dict[str, Any], *arguments: str, code: int = 2, app: Any = None) -> str:
        result = run_forge("run", str(write_config(config)), *arguments, app=app)
        assert result.exit_code == code, result.stderr
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, result.stderr
        assert "Traceback" not in result.stderr
        return lines[0]

    return run


def test_unknown_key(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    small_config["training"] = {"learning_rat": 1}
    line = fails(small_config)
    assert "small.yaml:" in line
    assert "training.learning_rat" in line
    assert "did you mean" in line
    assert "learning_rate" in line


def test_wrong_type(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    line = fails(small_config, "training.warmup_steps=soon")
    assert "training.warmup_steps=soon" in line
    assert "whole number" in line


def test_missing_file(run_forge: Any) -> None:
    result = run_forge("run", "nowhere/at_all.yaml")
    assert result.exit_code == 2
    assert "nowhere/at_all.yaml" in result.stderr


def test_yaml_syntax(tmp_path: Path, run_forge: Any) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("model:\n  path: [unclosed\ntraining: {}\n")
    result = run_forge("run", str(path))
    assert result.exit_code == 2
    assert "broken.yaml:3" in result.stderr


def test_unknown_component(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    line = fails(small_config, "--generator", "torhc")
    assert "torhc" in line
    assert "did you mean" in line
    assert "torch" in line


def test_dataset_line_that_is_not_json(
    small_config: dict[str, Any], fails: Callable[..., str], tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", \n')
    small_config["dataset"] = {"use": "jsonl", "path": str(data)}
    assert f"{data}:2: not JSON" in fails(small_config)


def test_dataset_line_that_lacks_a_field(
    small_config: dict[str, Any], fails: Callable[..., str], tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1+1="}\n')
    small_config["dataset"] = {"use": "jsonl", "path": str(data)}
    line = fails(small_config)
    assert f"{data}:1" in line
    assert "'response'" in line
    assert "'answer'" in line


def test_model_folder_without_weights(
    small_config: dict[str, Any], fails: Callable[..., str], tmp_path: Path, tiny_model: Path
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "weightless")
    (folder / "model.safetensors").unlink()
    small_config["model"] = {"path": str(folder)}
    line = fails(small_config)
    assert str(folder) in line
    assert "weights" in line


def test_output_folder_that_cannot_be_written(
    small_config: dict[str, Any], fails: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    line = fails(small_config, f"checkpointing.output_dir={tmp_path / 'file' / 'runs'}")
    assert "checkpointing.output_dir" in line


def test_reward_that_raises(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    small_config["rewards"] = {"raises": {}}
    line = fails(small_config, code=1, app=Forge(plugins=[Misbehaving()]))
    assert "reward 'raises' failed on" in line
    assert "ValueError: no such unit: 'parsec'" in line


def test_reward_that_hangs(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    small_config["rewards"] = {"hangs": {"deadline": 0.2}}
    small_config["eval_dataset"]["size"] = 2
    line = fails(small_config, code=1, app=Forge(plugins=[Misbehaving()]))
    assert "reward 'hangs' failed on 2 of 2" in line
    assert "deadline of 0.2 s" in line


def test_loss_that_is_not_finite(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    class Broken:
        def __call__(self, logprobs: Any, batch: Any, outputs: Any) -> Any:
            from forge_core import LossOutput

            return LossOutput(sum=logprobs.sum() * float("nan"), count=logprobs.numel())

    class BrokenLoss:
        @hookimpl
        def forge_losses(self) -> Any:
            yield LossComponent(
                name="broken",
                settings=NoSettings,
                build=lambda settings, context: Broken(),
                summary="NaN",
            )

    app = Forge(plugins=[BrokenLoss()])
    line = fails(small_config, "stages.sft.loss.use=broken", code=1, app=app)
    assert "step 1" in line
    assert "nan" in line


def test_loss_that_needs_what_the_recipe_does_not_give(
    small_config: dict[str, Any], fails: Callable[..., str]
) -> None:
    line = fails(small_config, "loss.use=gspo")
    assert "'gspo' needs advantages, sampler_logprobs" in line
    assert "'sft'" in line


def test_loss_that_no_stage_can_use(
    small_config: dict[str, Any], fails: Callable[..., str]
) -> None:
    small_config["stages"].pop("grpo")
    small_config["stages"]["more"] = small_config["stages"]["sft"]
    assert "'gspo' needs advantages" in fails(small_config, "--loss", "gspo")


def test_a_run_without_a_target(small_config: dict[str, Any], fails: Callable[..., str]) -> None:
    line = fails(small_config, "stages.sft.training.steps=null")
    assert "training.steps: give steps or num_epochs" in line


def test_prompts_outside_the_alphabet(
    small_config: dict[str, Any], fails: Callable[..., str]
) -> None:
    line = fails(small_config, "stages.sft.dataset.template='{a} {op} {b} ='")
    assert "cannot encode" in line


def test_group_that_does_not_divide_the_batch(
    small_config: dict[str, Any], fails: Callable[..., str]
) -> None:
    assert "recipe.group_size: 7" in fails(small_config, "stages.grpo.recipe.group_size=7")
