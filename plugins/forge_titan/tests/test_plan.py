"""What ``forge plan`` says of trainer titan, against trainers that really hold it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_core import (
    BuildContext,
    DistributedSection,
    ModelInit,
    ModelSection,
    Selection,
    TrainerComponent,
    TrainingSection,
    TrainSequence,
    Workload,
)
from forge_models.folder import materialize
from forge_models.shape import model_shape
from forge_sft.plugin import forge_losses
from forge_testing.conformance.trainer import OPTIMIZER
from forge_testing.context import bare_context
from forge_testing.ranks import RankPool
from forge_testing.shapes import LLAMA_31_8B, QWEN3_8B
from forge_titan.memory import trainer_memory
from forge_titan.settings import TitanTrainerSettings

CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSection:
    init = ModelInit(characters="abcdefghijklmnopqrstuvwxyz0123", config=CONFIG)
    folder = materialize(ModelSection(init=init), tmp_path_factory.mktemp("model"), seed=0)
    return ModelSection(path=folder)


@pytest.mark.parametrize(
    ("section", "procs", "most"),
    [
        ({}, 1, 1.0),
        ({"activation_checkpoint": "full"}, 1, 1.0),
        ({"strategy": "fsdp"}, 2, 1.02),
        ({"strategy": "ddp"}, 2, 1.0),
        ({"tensor_parallel_degree": 2}, 2, 1.0),
        ({"pipeline_parallel_degree": 2}, 2, 1.0),
        ({"strategy": "fsdp", "precision": "bf16"}, 2, 1.02),
    ],
)
async def test_told_is_held(
    ranks: RankPool, model: ModelSection, section: dict[str, Any], procs: int, most: float
) -> None:
    """Parameters and optimizer state of the fullest rank, to the byte but for FSDP's padding."""
    (loss,) = forge_losses()
    context = BuildContext(
        model=model,
        training=TrainingSection(steps=1),
        distributed=DistributedSection(**section),
        loss=Selection(family="loss", component=loss, settings=loss.settings()),
        optimizer=OPTIMIZER,
    )
    settings = TitanTrainerSettings(device="cpu")
    measured = TrainerComponent(
        name="measured", settings=TitanTrainerSettings, build=build_measured, summary=""
    )
    trainer = ranks.build(
        Selection(family="trainer", component=measured, settings=settings), context, procs
    )
    sequence = TrainSequence([2, 3, 4, 5], [False, True, True, True])
    await trainer.train_step([[sequence] * 4])
    await trainer.held()
    held = {term: max(rank[term] for rank in trainer.all) for term in trainer.all[0]}
    await trainer.close()
    shape = model_shape(model)
    assert shape is not None
    told = trainer_memory(
        settings,
        replace(context, world_size=procs),
        Workload(shape=shape, tokens=16, longest=4),
    )
    for term, size in held.items():
        assert told.device[term] <= size <= told.device[term] * most, term


def build_measured(settings: TitanTrainerSettings, context: BuildContext) -> Any:
    from forge_titan.policy import local
    from forge_titan.trainer import TitanTrainer

    class Measured(TitanTrainer):
        def held(self) -> dict[str, int]:
            parameters = [local(p).nbytes for _, p in self.policy.named_parameters()]
            moments = [
                local(tensor).nbytes
                for optimizer in self.optimizers
                for state in optimizer.state.values()
                for name, tensor in state.items()
                if name != "step"
            ]
            return {"parameters": sum(parameters), "optimizer": sum(moments)}

    return Measured(settings, context)


def test_offloaded_terms_move_to_the_host(model: ModelSection) -> None:
    shape = model_shape(model)
    assert shape is not None
    workload = Workload(shape=shape, tokens=1000, longest=100, reference=True)
    contexts = [
        bare_context(
            model=model,
            distributed=DistributedSection(enable_cpu_offload=offload),
            world_size=2,
        )
        for offload in (False, True)
    ]
    here, there = (trainer_memory(TitanTrainerSettings(), c, workload) for c in contexts)
    assert here.host == {}
    assert dict(here.device) == {**there.device, **there.host}
    assert set(there.host) == {"parameters", "gradients", "optimizer", "reference"}


def test_what_saves_activations(model: ModelSection) -> None:
    def activations(**section: Any) -> int:
        context = bare_context(model=model, distributed=DistributedSection(**section), world_size=2)
        shape = model_shape(model)
        assert shape is not None
        workload = Workload(shape=shape, tokens=10_000, longest=100)
        return trainer_memory(TitanTrainerSettings(), context, workload).device["activations"]

    plain = activations()
    assert activations(activation_checkpoint="full") < plain / 2
    assert activations(activation_checkpoint="selective") < plain
    assert activations(precision="bf16") < plain
    assert activations(tensor_parallel_degree=2) == pytest.approx(plain, rel=0.01)  # no data split


@pytest.mark.parametrize(
    ("preset", "config", "expected"),
    [
        ("llama3-8b-sft", LLAMA_31_8B, 8_030_261_248 / 8),
        ("qwen3-8b", QWEN3_8B, 8_190_735_360 / 4),
    ],
)
def test_gpu_presets_can_be_planned_without_weights(
    run_forge: Any, tmp_path: Path, preset: str, config: dict[str, Any], expected: float
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run_forge("plan", preset, f"model.path={tmp_path}")
    assert result.exit_code == 0, result.stderr
    terms = dict(re.findall(r"^    (\w[\w ]+?) +([\d.]+)", result.stdout, re.M))
    assert float(terms["parameters"]) == pytest.approx(expected * 4 / 2**30, abs=2e-3)
    assert float(terms["total on the device"]) < 75  # fits 80 GB


def test_presets_resolve(run_forge: Any) -> None:
    for preset in ("quickstart-titan", "llama3-8b-sft", "qwen3-8b"):
        result = run_forge("config", "show", preset)
        assert result.exit_code == 0, result.stderr
        assert "use: titan" in result.stdout


@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"]])
def test_impossible_degrees_are_refused_before_a_start(run_forge: Any, command: list[str]) -> None:
    degrees = ["distributed.data_parallel_shard_degree=2", "distributed.tensor_parallel_degree=2"]
    result = run_forge(*command, "quickstart-titan", *degrees)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "2 (shard) x 2 (tensor) = 4 ranks, but trainer.procs is 2" in line
