"""What cannot work is refused by ``--dry-run``, and by a run before its folder is made."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_core import DatasetComponent, Forge, Settings, Task, hookimpl
from forge_models.architectures import causal_language_models
from forge_testing.runs import small_config

Refused = Callable[..., str]


@pytest.fixture
def refused(write_config: Any, run_forge: Any, tmp_path: Path) -> Refused:
    """The one line that ``forge run`` says with and without ``--dry-run``; nothing is made."""

    def run(config: dict[str, Any], *arguments: str, app: Any = None) -> str:
        output = tmp_path / "output"
        where = [f"checkpointing.output_dir={output}"]
        said = []
        for flags in (["--dry-run"], []):
            result = run_forge(
                "run", str(write_config(config)), *where, *arguments, *flags, app=app
            )
            assert result.exit_code == 2, result.stdout + result.stderr
            (line,) = result.stderr.splitlines()
            said.append(line)
            assert not output.exists()
        assert said[0] == said[1]
        return said[0]

    return run


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"path": "/nowhere/model"}, "model.path: /nowhere/model: no such folder"),
        ({"path": "meta-llama/Llama-3.2-1B"}, "hf download meta-llama/Llama-3.2-1B --local-dir"),
        (
            {"name": "Qwen/Qwen3-0.6B", "path": "models/qwen"},
            "download it first: hf download Qwen/Qwen3-0.6B --local-dir models/qwen",
        ),
        ({"name": "Qwen/Qwen3-0.6B"}, "hf download Qwen/Qwen3-0.6B --local-dir DIR"),
        ({"dtype": "float32"}, "model: give path (a folder in Hugging Face layout) or init"),
        ({"init": {"characters": "0123456789+=0"}}, "model.init.characters: '0'"),
        ({"init": {"characters": ""}}, "model.init.characters: the alphabet is empty"),
        (
            {"init": {"characters": "0123456789+=", "architecture": "qwen33"}},
            "model.init.architecture: 'qwen33' is no causal language model",
        ),
    ],
)
def test_a_model_that_is_not_there(refused: Refused, model: dict[str, Any], message: str) -> None:
    assert message in refused(small_config(model=model))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_a_model_folder_without_a_file(
    refused: Refused, tiny_model: Path, tmp_path: Path, missing: str, message: str
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / missing).unlink()
    line = refused(small_config(model={"path": str(folder)}))
    assert f"model folder {folder}: {message}" in line


def test_a_model_that_a_plugin_ships_is_made_by_a_command(refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    line = refused(small_config(model={"path": str(folder)}))
    assert f"{folder}: no such folder; make it with: " in line
    assert line.endswith(f"forge model smollm2 {folder}")


def test_a_run_folder_as_a_model_names_its_newest_checkpoint(
    refused: Refused, tmp_path: Path
) -> None:
    for step in ("step_9", "step_10", ".step_11.tmp"):
        (tmp_path / "run" / "checkpoints" / step).mkdir(parents=True)
    line = refused(small_config(model={"path": str(tmp_path / "run")}))
    assert line.endswith(
        f"it is a run folder, whose newest model is {tmp_path}/run/checkpoints/step_10"
    )


def test_a_field_of_a_new_model_that_its_architecture_does_not_have(
    write_config: Any, run_forge: Any, tmp_path: Path
) -> None:
    """Only transformers knows the fields; the run asks it before it makes a folder."""
    config = small_config({"hidden_sizes": 32})
    output = tmp_path / "output"
    result = run_forge("run", str(write_config(config)), f"checkpointing.output_dir={output}")
    assert result.exit_code == 2
    assert "model.init.config.hidden_sizes: qwen3 has no such field" in result.stderr
    assert not output.exists()


def test_the_model_is_checked_without_transformers(write_config: Any, tiny_model: Path) -> None:
    file = write_config(small_config(model={"path": str(tiny_model)}))
    program = (
        f"import sys; from forge_core.cli import main; code = main(['run', {str(file)!r}, "
        "'--dry-run']); print('transformers' in sys.modules, code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "False 0"


def test_the_known_architectures_are_those_of_transformers() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert causal_language_models() == dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_output_folder_that_cannot_be_written(
    write_config: Any, run_forge: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    place = f"checkpointing.output_dir={tmp_path / 'file' / 'runs'}"
    result = run_forge("run", str(write_config(small_config())), place, "--dry-run")
    assert result.exit_code == 2
    assert "checkpointing.output_dir: cannot write to" in result.stderr


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize("section", ["trainer", "generator", "reward_workers"])
def test_gpus_that_are_not_there(refused: Refused, section: str) -> None:
    service = section.removesuffix("_workers").replace("reward", "rewards")
    line = refused(small_config(), f"{section}.with_gpus=true", "transport.use=shm")
    assert f"with_gpus: this host has 0 GPUs and needs 1: 1 with {service}" in line


def test_gpus_that_are_there(
    monkeypatch: pytest.MonkeyPatch, write_config: Any, run_forge: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpus = ["trainer.with_gpus=true", "generator.with_gpus=true", "transport.use=shm"]
    file = str(write_config(small_config()))
    assert run_forge("run", file, "--dry-run", *gpus).exit_code == 0
    result = run_forge("run", file, "--dry-run", *gpus, "generator.replicas=2")
    assert result.exit_code == 2
    assert "this host has 2 GPUs and needs 3: 1 with trainer, 2 with generator" in result.stderr


def test_a_window_that_the_model_does_not_have(refused: Refused) -> None:
    line = refused(small_config(), "generator.max_model_len=65")
    assert "generator.max_model_len: 65 is more than the 64 positions the model knows" in line


def test_several_ranks_of_a_generator_of_one_process(refused: Refused) -> None:
    line = refused(small_config(), "generator.procs=2", "transport.use=shm")
    assert "generator.procs: generator torch runs in one process, not in 2" in line


def test_a_system_prompt_for_a_model_without_chat_template(
    refused: Refused, tiny_model: Path, tmp_path: Path, write_config: Any, run_forge: Any
) -> None:
    for model in ({"path": str(tiny_model)}, small_config()["model"]):
        line = refused(small_config(model=model), "environment.system_prompt=Add")
        assert "environment.system_prompt: makes every prompt a chat" in line
    folder = shutil.copytree(tiny_model, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    file = str(write_config(small_config(model={"path": str(folder)})))
    assert run_forge("run", file, "--dry-run", "environment.system_prompt=Add").exit_code == 0


@pytest.mark.parametrize(
    ("component", "message"),
    [
        ("trainer.use=titan", "trainer titan has no model_type 'gpt2' (it has llama, qwen3)"),
        ("generator.use=vllm", ""),
    ],
)
@pytest.mark.parametrize("made", [False, True])
def test_an_architecture_that_an_engine_does_not_have(
    refused: Refused, tmp_path: Path, tiny_model: Path, component: str, message: str, made: bool
) -> None:
    model_type = "gpt2" if message else "ctrl"
    if made:
        model: dict[str, Any] = {"init": {"architecture": model_type, "characters": "0123456789+="}}
    else:
        folder = shutil.copytree(tiny_model, tmp_path / "model")
        names = {"model_type": model_type, "architectures": ["CTRLLMHeadModel"]}
        (folder / "config.json").write_text(json.dumps(names))
        model = {"path": str(folder)}
    line = refused(small_config(model=model), component)
    assert (message or "has no CTRLLMHeadModel") in line
    assert ("model.init" if made else "model folder") in line


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"attention_bias": True}, "no attention_bias True"),
        ({"hidden_act": "gelu"}, "no hidden_act 'gelu' (it has: silu)"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "no rope_parameters.rope_type 'yarn'"),
    ],
)
def test_a_part_of_a_model_that_trainer_titan_does_not_have(
    refused: Refused, field: dict[str, Any], message: str
) -> None:
    line = refused(small_config(field), "trainer.use=titan")
    assert message in line


def test_a_window_that_the_model_does_not_have_for_vllm(refused: Refused) -> None:
    line = refused(small_config(), "generator.use=vllm", "generator.engine.max_model_len=65")
    assert "generator.engine.max_model_len: 65 is more than the 64 positions" in line


class OfTasks:
    """A dataset of the tasks it is given in code."""

    def __init__(self, *tasks: Task) -> None:
        self.tasks = list(tasks)

    @hookimpl
    def forge_datasets(self) -> Any:
        yield DatasetComponent(
            name="given",
            settings=Settings,
            build=lambda settings, context: self.tasks,
            summary="tasks from code",
        )


@pytest.mark.parametrize("reward", ["exact_match", "math"])
@pytest.mark.parametrize("section", ["dataset", "eval_dataset"])
def test_rewards_that_need_answers_which_the_data_do_not_have(
    refused: Refused, tmp_path: Path, section: str, reward: str
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "response": "3"}\n')
    config = small_config(rewards={"correct": {"use": reward}})
    config[section] = {"use": "jsonl", "path": str(data)}
    line = refused(config)
    assert f"{section}: task 'rows.jsonl:2' has no answer to compare with" in line
    assert "(rewards.correct, stage 'grpo')" in line


def test_answers_are_needed_only_of_tasks_that_are_scored(
    write_config: Any, run_forge: Any, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "response": "3"}\n')
    rows = {"use": "jsonl", "path": str(data)}
    config = small_config(recipe={"use": "sft"}, dataset=rows, eval_dataset=rows)
    file = str(write_config(config | {"evaluation": {"tasks": 1}}))
    result = run_forge("run", file, "--dry-run", "generator.procs=1")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("recipe", ["sft", "grpo"])
def test_a_chat_for_a_model_without_chat_template(
    refused: Refused, tmp_path: Path, recipe: str
) -> None:
    data = tmp_path / "rows.jsonl"
    chat = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    data.write_text(json.dumps({"messages": chat, "answer": "2"}) + "\n")
    config = small_config(recipe={"use": recipe}, dataset={"use": "jsonl", "path": str(data)})
    line = refused(config)
    assert "dataset: the prompt of task 'rows.jsonl:1' is a chat, but the model's" in line


def test_a_row_with_nothing_to_imitate(refused: Refused) -> None:
    app = Forge(plugins=[OfTasks(Task(id="a", prompt="1+1=", answer="2"), Task("b", "1+2="))])
    config = small_config(recipe={"use": "sft"}, dataset={"use": "given"})
    line = refused(config, app=app)
    assert "dataset: task 'b' has neither response nor answer to imitate" in line


def test_rows_that_are_to_be_cut_at_no_length(refused: Refused) -> None:
    line = refused(small_config(recipe={"use": "sft", "overlong": "truncate"}))
    assert "recipe.overlong=truncate: does nothing without recipe.max_length" in line


def test_rows_longer_than_the_models_window(refused: Refused) -> None:
    line = refused(small_config(recipe={"use": "sft", "max_length": 65}))
    assert "recipe.max_length: 65 is more than the 64 positions the model knows" in line


@pytest.mark.parametrize("trainer", ["torch", "titan"])
def test_a_pipelines_schedule_without_a_pipeline(refused: Refused, trainer: str) -> None:
    schedule = "distributed.pipeline_parallel_schedule=GPipe"
    assert f"{schedule}: " in refused(small_config(), f"trainer.use={trainer}", schedule)


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize(
    "component", ["trainer.use=torch", "trainer.use=titan", "generator.use=torch"]
)
def test_a_device_that_is_not_there(refused: Refused, component: str) -> None:
    section = component.partition(".")[0]
    line = refused(small_config(), component, f"{section}.device=cuda")
    assert f"{section}.device: no CUDA device: " in line


def test_a_tracker_whose_package_is_not_installed(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name)
    )
    line = refused(small_config(), "trackers.tensorboard={}")
    assert "the package tensorboard is not installed; pip install" in line
