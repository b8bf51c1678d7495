"""The presets that the plugin ships, as far as they go without their models and GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from forge_core import Forge, ModelInit, ModelSection
from forge_models.folder import materialize
from forge_testing.plugin import TINY_CHARACTERS
from forge_testing.runs import lines_of
from forge_testing.shapes import LLAMA_31_8B, QWEN3_1_7B, QWEN3_8B, tiny_shape

CONFIGS = {
    "qwen3-1.7b": QWEN3_1_7B,
    "qwen3-1.7b-one-gpu": QWEN3_1_7B,
    "qwen3-8b": QWEN3_8B,
    "llama3.1-8b": LLAMA_31_8B,
}
"""The sizes of each preset's model, as published."""

GPU = 80.0
"""GiB of the devices that the presets are for."""


@pytest.fixture
def with_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``with_config(preset)``: work in a folder with the config of the preset's model, and files in
    place of its weights and tokenizer.

    Its window is the engine's: no sequence can be longer.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")

    def put(preset: str) -> None:
        config = Forge().resolve(preset)
        path, generator = config.model.path, config.stages[0].generator
        assert path is not None
        assert generator is not None
        window = generator.settings.engine["max_model_len"]  # type: ignore[attr-defined]
        path.mkdir(parents=True)
        sizes = {**CONFIGS[preset], "max_position_embeddings": window}
        (path / "config.json").write_text(json.dumps(sizes))
        for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
            (path / name).write_text("stands for the model's")

    return put


def test_the_quickstart_with_the_engine_is_the_quickstart_else() -> None:
    quickstart, ours = (Forge().resolve(name).tree for name in ("quickstart", "quickstart-vllm"))
    for name in ("sft", "grpo"):
        theirs, with_engine = quickstart["stages"][name], ours["stages"][name]
        differs = {key for key in {*theirs, *with_engine} if theirs[key] != with_engine[key]}
        assert differs <= {"generator"}
    assert {key for key in quickstart if quickstart[key] != ours[key]} <= {
        "name",
        "generator",
        "stages",
    }


def test_the_quickstarts_window_holds_its_longest_completion() -> None:
    config = Forge().resolve("quickstart-vllm")
    for stage in config.stages:
        assert stage.generator is not None
        engine = stage.generator.settings.engine  # type: ignore[attr-defined]
        longest = max(len("99+99="), len("10+10="))
        assert longest + stage.sampling.max_tokens <= engine["max_model_len"]


@pytest.mark.parametrize("preset", CONFIGS)
def test_nothing_is_wrong_with_it(preset: str, with_config: Any, run_forge: Any) -> None:
    with_config(preset)
    result = run_forge("run", preset, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "generator vllm, trainer titan" in result.stdout


@pytest.mark.parametrize("preset", CONFIGS)
def test_the_trainer_fits_its_gpus(preset: str, with_config: Any, run_forge: Any) -> None:
    with_config(preset)
    result = run_forge("plan", preset)
    assert result.exit_code == 0, result.stderr
    (total,) = re.findall(r"total on the device\s+([\d.,]+)", result.stdout)
    assert 10 < float(total.replace(",", "")) < 0.9 * GPU


@pytest.mark.parametrize("preset", [name for name in CONFIGS if "one-gpu" not in name])
def test_trainer_and_engine_have_gpus_of_their_own(preset: str) -> None:
    (stage,) = Forge().resolve(preset).stages
    trainer, generator = stage.trainer_placement, stage.generator_placement
    assert trainer.with_gpus
    assert stage.generator is not None
    engine = stage.generator.settings.engine  # type: ignore[attr-defined]
    assert engine["dtype"] == "bfloat16"
    degree = engine.get("tensor_parallel_size", 1)
    if degree == 1:
        assert generator.with_gpus
    else:
        devices = [int(name) for name in generator.env["CUDA_VISIBLE_DEVICES"].split(",")]
        assert devices == list(range(trainer.procs, trainer.procs + degree))
        assert generator.replicas == 1


def test_trainer_and_engine_fit_one_gpu(with_config: Any, run_forge: Any) -> None:
    with_config("qwen3-1.7b-one-gpu")
    (stage,) = Forge().resolve("qwen3-1.7b-one-gpu").stages
    assert stage.generator is not None
    engine = stage.generator.settings.engine  # type: ignore[attr-defined]
    share = engine["gpu_memory_utilization"]
    result = run_forge("plan", "qwen3-1.7b-one-gpu")
    (total,) = re.findall(r"total on the device\s+([\d.,]+)", result.stdout)
    on_their_way = 2 * 1.72 * 2  # two sets of bfloat16 weights, transport cuda_ipc
    assert float(total) + on_their_way + share * GPU < 0.95 * GPU
    assert share * GPU > 1.72 * 2 + 8  # the engine's weights, and room for sequences


@pytest.mark.parametrize(
    ("overrides", "share"),
    [
        ([], 0.3),
        (["generator.engine.gpu_memory_utilization=0.5"], 0.5),
        (["generator.engine.kv_cache_memory_bytes=1000000"], None),
        (["trainer.device=cpu"], None),
        (["trainer.with_gpus=true", "generator.with_gpus=true"], None),
        (["runtime.use=monarch"], None),
    ],
)
def test_beside_a_trainer_it_takes_a_share_of_the_gpu(
    overrides: list[str], share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes 0.92 of a GPU unless told otherwise."""
    monkeypatch.setattr("forge_vllm.checks.for_cpu", lambda: False)
    monkeypatch.setattr("forge_vllm.checks.visible_devices", lambda: ("0",))
    monkeypatch.setattr("forge_torch.checks.computes_on_cuda", lambda device: device != "cpu")
    for stage in Forge().resolve("quickstart-vllm", overrides=overrides).stages:
        assert stage.generator is not None
        engine = stage.generator.settings.engine  # type: ignore[attr-defined]
        assert engine.get("gpu_memory_utilization") == share
        assert engine["max_model_len"] == 16


@pytest.mark.parametrize(
    ("dtype", "precision", "on_cpu", "expected"),
    [
        ("float32", "bf16", False, "bfloat16"),
        ("float32", "fp32", False, "float32"),
        ("bfloat16", "fp32", False, "bfloat16"),
        ("float32", "bf16", True, "float32"),
    ],
)
def test_the_engine_computes_as_the_trainer_does_on_a_gpu(
    dtype: Any, precision: Any, on_cpu: bool, expected: str
) -> None:
    from forge_core import DistributedSection
    from forge_testing.context import bare_context
    from forge_vllm.engine_args import default_dtype

    context = bare_context(
        model=ModelSection(dtype=dtype), distributed=DistributedSection(precision=precision)
    )
    assert default_dtype(context, on_cpu=on_cpu) == expected


@pytest.mark.slow
def test_it_runs_with_a_tiny_model_in_place_of_its_own(
    run_forge_process: Any, tmp_path: Path
) -> None:
    """Chat template, TorchTitan in bfloat16, shared memory, engine in a process of its own."""
    shape = tiny_shape(head_dim=32, max_position_embeddings=512)
    init = ModelInit(architecture="qwen3", characters=TINY_CHARACTERS, config=shape)
    folder = materialize(ModelSection(init=init), tmp_path / "model", seed=0)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    result = run_forge_process(
        "run",
        "qwen3-1.7b",
        f"model.path={folder}",
        "trainer.with_gpus=false",
        "generator.with_gpus=false",
        "generator.isolate=true",
        "generator.engine={max_model_len: 256, dtype: bfloat16}",
        "sampling.max_tokens=8",
        "training.steps=2",
        "training.batch_size=16",
        "eval_dataset.size=4",
        timeout=900,
    )
    assert result.exit_code == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    rows = lines_of(run / "metrics.jsonl")
    assert len(rows) == 2
    # Trainer and engine compute in bfloat16.
    assert all(row["mismatch/logprob_abs_max"] < 0.2 for row in rows)
