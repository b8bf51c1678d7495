"""What is wrong is said in one line, before anything is trained."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from forge_core import (
    BuildContext,
    DataError,
    DistributedSection,
    ForgeError,
    ModelSection,
    PluginError,
    TrainingSection,
    TrainSequence,
    UsageError,
)
from forge_models.folder import materialize
from forge_testing.context import linear
from forge_titan.plugin import TRAINER
from forge_titan.settings import TitanTrainerSettings

CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def make_folder(folder: Path, architecture: str = "llama") -> Path:
    init = {"architecture": architecture, "config": CONFIG, "characters": "0123456789"}
    return materialize(ModelSection.model_validate({"init": init}), folder, seed=0)


def build(folder: Path | None, **sections: Any) -> Any:
    context = BuildContext(
        model=ModelSection(path=folder),
        training=sections.get("training", TrainingSection()),
        distributed=sections.get("distributed", DistributedSection()),
        schedule=sections.get("schedule"),
    )
    settings = TitanTrainerSettings(device="cpu", flavor=sections.get("flavor"))
    return TRAINER.build(settings, context)


def refusal(folder: Path, kind: type[ForgeError] = DataError, **sections: Any) -> str:
    with pytest.raises(kind) as raised:
        build(folder, **sections)
    message = str(raised.value)
    assert "\n" not in message
    return message


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_an_architecture_that_titan_lacks_is_named_with_those_it_has(tmp_path: Path) -> None:
    message = refusal(make_folder(tmp_path, "mistral"))
    assert "'mistral'" in message
    assert "llama, qwen3" in message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' (it has: silu)"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters.rope_type 'linear' (it has: default, llama3)",
        ),
    ],
)
def test_a_part_that_titan_lacks_is_named(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    folder = make_folder(tmp_path)
    change_config(folder, **fields)
    assert named in refusal(folder)


def test_a_flavour_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    message = refusal(folder, UsageError, flavor="80b")
    assert "no llama3 '80b'; did you mean 8B?" in message
    assert "debugmodel, 1B, 3B, 8B, 70B, 405B" in message


def test_a_model_of_another_flavour_is_told_apart_by_its_sizes(tmp_path: Path) -> None:
    message = refusal(make_folder(tmp_path, "qwen3"), flavor="0.6B")
    assert "not TorchTitan's qwen3 0.6B" in message
    assert "width 32, not 1024" in message


def test_another_vocabulary_names_the_tensors(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    change_config(folder, vocab_size=20)
    message = refusal(folder)
    assert "model.embed_tokens.weight is [12, 32] and config.json says [20, 32]" in message
    assert "lm_head.weight" in message


def test_missing_and_surplus_weights_are_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    norm = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors")
    assert "the weights have no model.norm.weight" in refusal(folder)
    weights |= {"model.norm.weight": norm, "model.extra.weight": torch.ones(1)}
    save_file(weights, folder / "model.safetensors")
    assert "no place for model.extra.weight" in refusal(folder)


def test_weights_in_another_format_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "safetensors" in refusal(folder)


def test_degrees_must_fit_the_ranks(tmp_path: Path) -> None:
    distributed = DistributedSection(tensor_parallel_degree=2)
    message = refusal(make_folder(tmp_path), UsageError, distributed=distributed)
    assert "trainer.procs" in message


def test_offloading_from_the_cpu_is_refused(tmp_path: Path) -> None:
    distributed = DistributedSection(enable_cpu_offload=True)
    message = refusal(make_folder(tmp_path), UsageError, distributed=distributed)
    assert "distributed.enable_cpu_offload" in message


def test_a_schedule_without_an_end_is_refused(tmp_path: Path) -> None:
    assert "training.steps" in refusal(make_folder(tmp_path), UsageError, schedule=linear())


async def test_a_sequence_beyond_the_window_is_refused(tmp_path: Path) -> None:
    trainer = build(make_folder(tmp_path))
    with pytest.raises(UsageError, match=r"33 tokens.*window of 32"):
        await trainer.logprobs([TrainSequence([1] * 33, [False] + [True] * 32)])
    await trainer.close()


async def test_training_without_a_loss_or_transport_is_refused(tmp_path: Path) -> None:
    trainer = build(make_folder(tmp_path))
    with pytest.raises(UsageError, match=r"loss\.use"):
        await trainer.train_step([])
    with pytest.raises(UsageError, match=r"transport\.use"):
        await trainer.publish(0)
    with pytest.raises(DataError, match="trainer_state"):
        await trainer.load(trainer.folder)
    await trainer.close()


def test_without_torchtitan_the_command_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    message = refusal(make_folder(tmp_path), PluginError)
    assert "pip install torchtitan==0.3.0" in message


async def test_another_release_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path)
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.4.0" if name == "torchtitan" else real(name)
    )
    with pytest.warns(UserWarning, match=r"0\.3\.0 and this is 0\.4\.0"):
        trainer = build(folder)
    await trainer.close()
