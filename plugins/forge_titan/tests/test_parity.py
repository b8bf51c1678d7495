"""Trainer ``titan`` against trainer ``torch``: one seed and data order, the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import (
    BuildContext,
    Component,
    DistributedSection,
    LossComponent,
    ModelSection,
    Selection,
    Trainer,
    TrainingSection,
    TrainSequence,
)
from forge_grpo.plugin import forge_losses as grpo_losses
from forge_models.folder import materialize
from forge_sft.plugin import forge_losses as sft_losses
from forge_testing.context import adamw, cosine
from forge_testing.policies import policy_init
from forge_titan.plugin import TRAINER as TITAN
from forge_torch.plugin import TRAINER as TORCH

STEPS = 20
LOSSES: dict[str, LossComponent] = {
    component.name: component for component in (*sft_losses(), *grpo_losses())
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cross_entropy": {},
    "grpo": {"kl_coef": 0.1, "entropy_coef": 0.01},
}
LLAMA_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16, "rope_theta": 5e4, "tie_word_embeddings": True},
    "llama": {"rope_parameters": LLAMA_ROPE, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    init = policy_init(request.param, initializer_range=0.1, **MODELS[request.param])
    section = ModelSection(init=init)
    return materialize(section, tmp_path_factory.mktemp(request.param), seed=3)


def make(
    component: Component[Any],
    folder: Path,
    loss: str,
    distributed: DistributedSection | None = None,
    **settings: Any,
) -> Trainer:
    chosen = LOSSES[loss]
    context = BuildContext(
        model=ModelSection(path=folder),
        training=TrainingSection(steps=STEPS, learning_rate=1e-2, warmup_steps=3),
        optimizer=adamw(weight_decay=0.1),
        schedule=cosine(),
        distributed=distributed or DistributedSection(),
        loss=Selection(family="loss", component=chosen, settings=chosen.settings(**SETTINGS[loss])),
    )
    trainer: Trainer = component.build(component.settings(device="cpu", **settings), context)
    return trainer


async def batch(step: int, sampler: Trainer | None = None) -> list[list[TrainSequence]]:
    """Two micro-batches of sequences of unequal lengths; logprobs near those of ``sampler``."""
    generator = torch.Generator().manual_seed(step)
    sequences = []
    for _ in range(6):
        length = int(torch.randint(3, 25, (), generator=generator))
        tokens = torch.randint(15, (length,), generator=generator).tolist()
        sequences.append(TrainSequence(tokens, [i > length // 3 for i in range(length)]))
    if sampler is not None:
        rows = await sampler.logprobs(sequences)
        reference = await sampler.logprobs(sequences, reference=True)
        sequences = [
            TrainSequence(
                s.tokens,
                s.loss_mask,
                {
                    "sampler_logprobs": (torch.tensor(row) + _noise(row, generator)).tolist(),
                    "reference_logprobs": other,
                    "advantages": float(torch.randn((), generator=generator)),
                },
            )
            for s, row, other in zip(sequences, rows, reference, strict=True)
        ]
    return [sequences[:4], sequences[4:]]


def _noise(row: list[float], generator: torch.Generator) -> torch.Tensor:
    return 0.2 * torch.randn(len(row), generator=generator)


@pytest.mark.parametrize("loss", ["cross_entropy", "grpo"])
async def test_losses_are_those_of_trainer_torch(folder: Path, loss: str) -> None:
    titan, plain = make(TITAN, folder, loss), make(TORCH, folder, loss)
    try:
        await titan.hold_reference()
        await plain.hold_reference()
        for step in range(STEPS):
            sampler = None if loss == "cross_entropy" else plain
            micro_batches = await batch(step, sampler)
            expected = await plain.train_step(micro_batches, temperature=0.9)
            result = await titan.train_step(micro_batches, temperature=0.9)
            assert result.loss == pytest.approx(expected.loss, abs=1e-4)
            assert result.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)
            assert result.learning_rate == expected.learning_rate
            assert result.metrics == pytest.approx(expected.metrics, abs=1e-3)
            assert (result.tokens, result.trained_tokens) == (
                expected.tokens,
                expected.trained_tokens,
            )
        if loss == "grpo":
            given = [s for part in micro_batches for s in part]
            for reference in (False, True):
                rows = await titan.logprobs(given, reference=reference)
                for row, other in zip(
                    rows, await plain.logprobs(given, reference=reference), strict=True
                ):
                    assert row == pytest.approx(other, abs=1e-3)
    finally:
        await titan.close()
        await plain.close()


@pytest.mark.parametrize("mode", ["selective", "full"])
async def test_activation_checkpointing_changes_no_number(folder: Path, mode: Any) -> None:
    saving = make(TITAN, folder, "cross_entropy", DistributedSection(activation_checkpoint=mode))
    plain = make(TITAN, folder, "cross_entropy")
    for step in range(3):
        micro_batches = await batch(step)
        expected = await plain.train_step(micro_batches)
        result = await saving.train_step(micro_batches)
        assert result.loss == pytest.approx(expected.loss, abs=1e-6)
        assert result.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    await saving.close()
    await plain.close()


async def test_a_resumed_run_goes_on_exactly(folder: Path, tmp_path: Path) -> None:
    whole, first = make(TITAN, folder, "cross_entropy"), make(TITAN, folder, "cross_entropy")
    losses = [(await whole.train_step(await batch(step))).loss for step in range(STEPS)]
    for step in range(STEPS // 2):
        await first.train_step(await batch(step))
    await first.save(tmp_path)
    await first.close()
    second = make(TITAN, folder, "cross_entropy")
    await second.load(tmp_path)
    for step in range(STEPS // 2, STEPS):
        result = await second.train_step(await batch(step))
        assert result.loss == pytest.approx(losses[step], abs=1e-6)
    await second.close()
    await whole.close()
