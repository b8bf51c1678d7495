"""Two ranks on gloo train as one process does, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import BuildContext, Component, Selection, TrainSequence
from forge_core.config.sections import DistributedSection, ModelSection, TrainingSection
from forge_core.models.folder import materialize
from forge_core.testing.ranks import RankPool, Together
from forge_grpo.plugin import forge_losses as grpo_losses
from forge_sft.plugin import forge_losses as sft_losses
from forge_titan.settings import TRAINER, TitanTrainerSettings

STEPS = 20
LOSSES: dict[str, Component[Any]] = {
    component.name: component for component in (*sft_losses(), *grpo_losses())
}
LAYOUTS = {
    "fsdp": {"strategy": "fsdp"},
    "replicate": {"strategy": "ddp"},
    "tensor": {"tensor_parallel_degree": 2},
    "pipeline": {"pipeline_parallel_degree": 2},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 whose heads and layers two ranks can share."""
    return make_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def alone(ranks: RankPool, model: Path) -> dict[str, list[float]]:
    """Losses of one process by loss, for all layouts to be compared with."""
    return {}


def make_model(folder: Path, architecture: str) -> Path:
    config = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    init = {"architecture": architecture, "config": config, "characters": "abcdefghijklmnopqrstu"}
    return materialize(ModelSection.model_validate({"init": init}), folder, seed=0)


def build(
    pool: RankPool, folder: Path, loss: str, layout: dict[str, Any], ranks: int = 2
) -> Together:
    component = LOSSES[loss]
    settings = {"kl_coef": 0.1, "entropy_coef": 0.01} if loss == "grpo" else {}
    context = BuildContext(
        model=ModelSection(path=folder),
        training=TrainingSection(
            learning_rate=1e-2, steps=STEPS, weight_decay=0.1, warmup_steps=2, schedule="cosine"
        ),
        distributed=DistributedSection(**layout),
        loss=Selection(family="loss", component=component, settings=component.settings(**settings)),
    )
    trainer = Selection(
        family="trainer", component=TRAINER, settings=TitanTrainerSettings(device="cpu")
    )
    return pool.build(trainer, context, ranks)


def batch(step: int, count: int = 7) -> list[list[TrainSequence]]:
    """Two micro-batches of sequences of unequal lengths."""
    generator = torch.Generator().manual_seed(step)
    sequences = []
    for _ in range(count):
        length = int(torch.randint(3, 20, (), generator=generator))
        tokens = torch.randint(23, (length,), generator=generator).tolist()
        noise = torch.randn(length, generator=generator)
        sequences.append(
            TrainSequence(
                tokens,
                [False, *[bool(t % 3) for t in tokens[1:]]],
                {
                    "advantages": float(noise[0]),
                    "sampler_logprobs": (-3 + 0.1 * noise).tolist(),
                    "reference_logprobs": (-3 + 0.1 * noise.flip(0)).tolist(),
                },
            )
        )
    return [sequences[: count // 2], sequences[count // 2 :]]


async def losses(trainer: Together, first: int = 0, last: int = STEPS) -> list[Any]:
    found = []
    for step in range(first, last):
        result = await trainer.train_step(batch(step))
        assert all(other == result for other in trainer.all)
        found.append((result.loss, result.grad_norm, dict(result.metrics)))
    return found


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for (loss, norm, metrics), (other_loss, other_norm, others) in zip(
        found, expected, strict=True
    ):
        assert loss == pytest.approx(other_loss, abs=2e-5)
        assert norm == pytest.approx(other_norm, rel=1e-3)
        assert metrics == pytest.approx(others, abs=1e-3)


@pytest.mark.parametrize("loss", ["cross_entropy", "grpo"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_two_ranks_train_as_one(
    ranks: RankPool, model: Path, alone: dict[str, Any], layout: str, loss: str
) -> None:
    if loss not in alone:
        single = build(ranks, model, loss, {}, ranks=1)
        alone[loss] = await losses(single)
        await single.close()
    trainer = build(ranks, model, loss, LAYOUTS[layout])
    assert_same(await losses(trainer), alone[loss])
    await trainer.close()
