"""What a person can get wrong with the engine ends in one line that says what, and what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import ModelInit, ModelSection
from forge_models.folder import materialize
from forge_testing.context import bare_context
from forge_vllm import argument_names
from forge_vllm.plugin import GENERATOR
from forge_vllm.settings import VllmSettings

Config = dict[str, Any]


@pytest.fixture
def fails(write_config: Any, run_forge: Any) -> Callable[..., str]:
    """Run a config that cannot work; the one line on standard error."""

    def run(config: Config, *arguments: str, code: int = 2) -> str:
        result = run_forge("run", str(write_config(config)), *arguments)
        assert result.exit_code == code, result.stderr
        assert "Traceback" not in result.stderr
        return error_line(result.stderr)

    return run


def error_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, stderr
    assert len(lines[0]) < 500
    return lines[0]


def test_unknown_engine_argument(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "generator.engine.max_model_length=32", "--dry-run")
    assert "generator.engine.max_model_length" in line
    assert "did you mean max_model_len?" in line


def test_engine_argument_that_is_forges(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "generator.engine.data_parallel_size=2", "--dry-run")
    assert "generator.engine.data_parallel_size: cannot be set: generator.replicas says it" in line


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        ("{api_key: [hunter2]}", "generator.serve.api_key: cannot be set: a config is written to"),
        ("{api_key_file: a, api_key_env: b}", "give api_key_file or api_key_env, not both"),
        ("{api_key_file: missing.txt}", "generator.serve.api_key_file: missing.txt: No such file"),
        ("{api_key_env: 5}", "generator.serve.api_key_env: must be text"),
        ("{api_key_fil: a}", "generator.serve.api_key_fil: vLLM"),
    ],
)
def test_where_the_key_of_an_address_is(
    small_config: Config, fails: Callable[..., str], serve: str, message: str
) -> None:
    line = fails(small_config, f"generator.serve={serve}", "--dry-run")
    assert message in line
    assert "hunter2" not in line


def test_unknown_sampling_parameter(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "generator.sampling.minp=0.1", "--dry-run")
    assert "generator.sampling.minp" in line
    assert "did you mean min_p?" in line


@pytest.mark.parametrize(
    "key",
    [
        "sampling.min_p=0.05",
        "sampling.repetition_penalty=1.2",
        "sampling.presence_penalty=0.5",
        "sampling.logit_bias={5: 1.0}",
        "sampling.allowed_token_ids=[3, 4]",
        "sampling.bad_words=[no]",
        "sampling.min_tokens=4",
        "sampling.structured_outputs={choice: [a, b]}",
        "sampling.thinking_token_budget=10",
        "engine.logits_processors=[a.b]",
    ],
)
def test_what_changes_the_distribution_is_refused_for_losses_with_ratios(
    small_config: Config, fails: Callable[..., str], key: str
) -> None:
    line = fails(small_config, f"generator.{key}", "--dry-run")
    assert f"generator.{key.partition('=')[0]}: not with loss 'grpo'" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["generator.sampling.min_p=0", "generator.sampling.repetition_penalty=1.0"],
        ["generator.sampling.logit_bias=null", "generator.sampling.bad_words=[]"],
        ["generator.sampling.skip_reading_prefix_cache=true"],
        ["generator.sampling.min_p=0.05", "loss.use=reinforce"],
    ],
    ids=str,
)
def test_other_sampling_parameters_are_not(
    small_config: Config, write_config: Any, run_forge: Any, arguments: list[str]
) -> None:
    result = run_forge("run", str(write_config(small_config)), *arguments, "--dry-run")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(("window", "warned"), [(None, True), (17, True), (16, False)])
def test_a_window_beyond_the_short_factors_of_longrope_is_warned_of(
    window: int | None, warned: bool
) -> None:
    rope = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    shape = {"max_position_embeddings": 64, "rope_parameters": rope}
    init = ModelInit(architecture="llama", config=shape, characters="0123456789")
    context = bare_context(model=ModelSection(init=init))
    settings = VllmSettings(engine={"max_model_len": window} if window else {})
    lines = GENERATOR.cautions(settings, context) if GENERATOR.cautions else []
    assert len(lines) == warned
    for line in lines:
        assert line.startswith(f"generator.engine.max_model_len: {window or 64} is beyond 16")


def test_value_that_an_engine_argument_cannot_have(
    small_config: Config, fails: Callable[..., str]
) -> None:
    line = fails(small_config, "generator.engine.max_model_len=-7")
    assert "max_model_len" in line


def test_no_such_model_folder(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "model.path=nowhere/model")
    assert "nowhere/model: no such folder" in line


def test_architecture_that_vllm_does_not_know(
    small_config: Config, fails: Callable[..., str], tmp_path: Path
) -> None:
    init = ModelInit(
        architecture="ctrl",
        characters="0123456789+=",
        config={"n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 1, "dff": 32},
    )
    folder = materialize(ModelSection(init=init), tmp_path / "ctrl", seed=0)
    small_config["model"] = {"path": str(folder)}
    line = fails(small_config)
    assert str(folder) in line
    assert "CTRLLMHeadModel" in line
    assert "vLLM" in line


def test_transformers_own_model_in_the_trainers_process(
    small_config: Config, fails: Callable[..., str]
) -> None:
    line = fails(small_config, "generator.engine.model_impl=auto")
    assert "generator.engine.model_impl" in line
    assert "generator.engine_process=true" in line


def test_head_dimension_that_the_cpu_kernels_do_not_know(
    small_config: Config, fails: Callable[..., str]
) -> None:
    line = fails(small_config, "model.init.config.head_dim=16")
    assert "head dimension of 16" in line
    assert "32, 64, 80" in line


def test_prompt_longer_than_the_window(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "generator.engine.max_model_len=4")
    assert "the prompt's 4 tokens leave no room in the window of 4" in line


def test_window_longer_than_the_model(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "generator.engine.max_model_len=65")
    assert "65" in line
    assert "64" in line
    assert "max_model_len" in line


def test_no_room_for_one_sequence_in_the_cache(
    small_config: Config, fails: Callable[..., str]
) -> None:
    line = fails(small_config, "generator.engine.kv_cache_memory_bytes=1000")
    assert "KV cache" in line
    assert "generator.engine.kv_cache_memory_bytes" in line
    # Nothing of the engine that did not start is in the way of the next one, or of a trainer.
    assert not torch.distributed.is_initialized()


def test_several_ranks_for_one_replica(small_config: Config, fails: Callable[..., str]) -> None:
    line = fails(small_config, "generator.procs=2", "transport.use=shm", "--dry-run")
    assert "generator.engine.tensor_parallel_size=2" in line


def test_no_vllm(small_config: Config, write_config: Any, tmp_path: Path) -> None:
    # As on a machine without it: the finders that find everything else do not find vllm.
    (tmp_path / "without.py").write_text(
        "import importlib.metadata, sys\n"
        "from importlib.machinery import PathFinder\n"
        "find, version = PathFinder.find_spec, importlib.metadata.version\n"
        "def find_spec(name, path=None, target=None):\n"
        "    return None if name.partition('.')[0] == 'vllm' else find(name, path, target)\n"
        "PathFinder.find_spec = staticmethod(find_spec)\n"
        "from forge_core.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "without.py", "run", str(write_config(small_config)), "--dry-run"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2, result.stderr
    line = error_line(result.stderr)
    assert "vLLM is not installed" in line
    assert "pip install" in line


def test_the_tested_version_is_the_one_that_is_installed() -> None:
    assert argument_names.vllm_version() == argument_names.TESTED


def test_a_vllm_of_an_untested_version_is_warned_of(
    small_config: Config,
    fails: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(argument_names, "TESTED", "0.99.0")
    # Anything that ends it soon after.
    fails(small_config, "model.init.config.head_dim=16")
    warning = f"vLLM {argument_names.vllm_version()} is not the version tested with Forge: 0.99.0"
    assert warning in caplog.messages


def test_weights_that_lack_a_tensor(
    small_config: Config, fails: Callable[..., str], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    init = ModelInit.model_validate(small_config["model"]["init"])
    folder = materialize(ModelSection(init=init), tmp_path / "whole", seed=0)
    missing = shutil.copytree(folder, tmp_path / "missing")
    weights = load_file(missing / "model.safetensors")
    weights.pop("model.layers.1.mlp.down_proj.weight")
    save_file(weights, missing / "model.safetensors", metadata={"format": "pt"})
    small_config["model"] = {"path": str(missing)}
    line = fails(small_config)
    assert str(missing) in line
    assert "down_proj" in line


def test_a_model_that_cannot_be_compiled(
    small_config: Config, write_config: Any, run_forge_process: Any
) -> None:
    result = run_forge_process(
        "run",
        str(write_config(small_config)),
        "generator.engine.enforce_eager=false",
        environ={"CXX": "/missing/g++"},
    )
    assert result.exit_code == 2
    assert (
        "generator.engine.enforce_eager: vLLM cannot compile the model without a C++ compiler"
        in error_line(result.stderr)
    )
