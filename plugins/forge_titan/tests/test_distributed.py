"""Two ranks on gloo train as one process does, whatever the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forge_core import (
    BuildContext,
    DistributedSection,
    Loss,
    LossBatch,
    LossComponent,
    LossOutput,
    ModelOutputs,
    ModelSection,
    Selection,
    TrainingSection,
    TrainSequence,
    UsageError,
)
from forge_grpo.plugin import forge_losses as grpo_losses
from forge_models.folder import load_model, materialize
from forge_sft.plugin import forge_losses as sft_losses
from forge_testing.conformance.trainer import Sharpens, Shrinks, Smooths
from forge_testing.context import adamw, cosine, select
from forge_testing.policies import policy_init
from forge_testing.ranks import RankError, RankPool, Together
from forge_titan.checks import check_trainer
from forge_titan.plugin import TRAINER
from forge_titan.settings import TitanTrainerSettings

STEPS = 20
FIELDS = ("advantages", "sampler_logprobs")
LOSSES: dict[str, LossComponent] = {
    component.name: component for component in (*sft_losses(), *grpo_losses())
}
TRAINING = TrainingSection(learning_rate=1e-2, steps=STEPS, warmup_steps=2)
LAYOUTS = {
    "fsdp": {"strategy": "fsdp"},
    "replicate": {"strategy": "ddp"},
    "tensor": {"tensor_parallel_degree": 2},
    "pipeline": {"pipeline_parallel_degree": 2},
    "context": {"context_parallel_degree": 2},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 whose heads and layers two ranks can share."""
    return make_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def alone(ranks: RankPool, model: Path) -> dict[str, list[float]]:
    """Losses of one process by loss, for all layouts to be compared with."""
    return {}


def make_model(folder: Path, architecture: str, layers: int = 2) -> Path:
    init = policy_init(
        architecture,
        num_hidden_layers=layers,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    return materialize(ModelSection(init=init), folder, seed=0)


def build(
    pool: RankPool,
    folder: Path,
    loss: str | Selection[Loss],
    layout: dict[str, Any],
    ranks: int = 2,
    weight_decay: float = 0.1,
    **training: Any,
) -> Together:
    if isinstance(loss, str):
        component = LOSSES[loss]
        settings = {"kl_coef": 0.1, "entropy_coef": 0.01} if loss == "grpo" else {}
        loss = Selection(
            family="loss", component=component, settings=component.settings(**settings)
        )
    context = BuildContext(
        model=ModelSection(path=folder),
        training=TRAINING.model_copy(update=training),
        distributed=DistributedSection(**layout),
        loss=loss,
        optimizer=adamw(weight_decay=weight_decay),
        schedule=cosine(),
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


@pytest.mark.parametrize(
    ("layout", "stop", "end"), [("fsdp", 10, STEPS), ("tensor", 2, 5), ("pipeline", 2, 5)]
)
async def test_a_checkpoint_goes_on_on_two_ranks_and_on_one(
    ranks: RankPool, model: Path, tmp_path: Path, layout: str, stop: int, end: int
) -> None:
    """The rest equals the uninterrupted run."""
    trainer = build(ranks, model, "grpo", LAYOUTS[layout])
    await losses(trainer, 0, stop)
    await trainer.save(tmp_path)
    expected = await losses(trainer, stop, end)
    resumed = build(ranks, model, "grpo", LAYOUTS[layout])
    await resumed.load(tmp_path)
    for (loss, norm, _), (other, other_norm, _) in zip(
        await losses(resumed, stop, end), expected, strict=True
    ):
        assert loss == pytest.approx(other, abs=1e-6)
        assert norm == pytest.approx(other_norm, rel=1e-5)
    await resumed.close()
    single = build(ranks, model, "grpo", {}, ranks=1)
    await single.load(tmp_path)
    assert_same(await losses(single, stop, end), expected)
    await single.close()


async def test_a_checkpoint_of_one_rank_goes_on_on_two(
    ranks: RankPool, model: Path, tmp_path: Path
) -> None:
    single = build(ranks, model, "cross_entropy", {}, ranks=1)
    await losses(single, 0, 3)
    await single.save(tmp_path)
    expected = await losses(single, 3, 6)
    await single.close()
    for layout in LAYOUTS.values():
        trainer = build(ranks, model, "cross_entropy", layout)
        await trainer.load(tmp_path)
        assert_same(await losses(trainer, 3, 6), expected)
        await trainer.close()


@pytest.mark.parametrize("layout", ["fsdp", "pipeline"])
async def test_every_rank_stops_where_weights_are_not_finite(
    ranks: RankPool, model: Path, tmp_path: Path, layout: str
) -> None:
    """None of them goes on into a collective that the others do not come to."""
    huge = {"learning_rate": 1e38, "weight_decay": 10.0, "warmup_steps": 0}
    trainer = build(ranks, model, "cross_entropy", LAYOUTS[layout], **huge)
    await trainer.train_step(batch(0))
    for call in (trainer.save(tmp_path), trainer.train_step(batch(1))):
        with pytest.raises(RankError, match=r"WeightsNotFinite: .*after step 1: weight \S+ is not"):
            await call
    assert list(tmp_path.iterdir()) == []
    await trainer.close()


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_two_ranks_save_loads_in_transformers(
    ranks: RankPool, tmp_path: Path, layout: str, architecture: str
) -> None:
    """Logits equal those that the ranks trained with."""
    folder = make_model(tmp_path / "before", architecture)
    trainer = build(ranks, folder, "cross_entropy", LAYOUTS[layout])
    await losses(trainer, 0, 2)
    (tmp_path / "after").mkdir()
    await trainer.save(tmp_path / "after")
    sequences = [TrainSequence(s.tokens, s.loss_mask) for s in batch(0)[0]]
    rows = await trainer.logprobs(sequences)
    await trainer.close()
    loaded = load_model(tmp_path / "after")
    for sequence, row in zip(sequences, rows, strict=True):
        tokens = torch.tensor(sequence.tokens)
        with torch.no_grad():
            scores = loaded(tokens[None]).logits[0, :-1].log_softmax(-1)
        expected = scores.gather(1, tokens[1:, None])[:, 0]
        mask = torch.tensor(sequence.loss_mask[1:])
        torch.testing.assert_close(torch.tensor(row[1:])[mask], expected[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_ranks_without_sequences_do_not_hold_up_the_others(
    ranks: RankPool, model: Path, layout: str
) -> None:
    alone = build(ranks, model, "cross_entropy", {}, ranks=1)
    (one, *_), _ = batch(0)
    expected = [await alone.train_step(b) for b in ([[one]], [], [[]])]
    (expected_row,) = await alone.logprobs([one])
    await alone.close()
    trainer = build(ranks, model, "cross_entropy", LAYOUTS[layout])
    found = [await trainer.train_step(b) for b in ([[one]], [], [[]])]
    (row,) = await trainer.logprobs([one])
    assert await trainer.logprobs([]) == []
    await trainer.close()
    for result, other in zip(found, expected, strict=True):
        assert (result.tokens, result.trained_tokens) == (other.tokens, other.trained_tokens)
        assert result.loss == pytest.approx(other.loss, abs=1e-5)
        assert result.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
    assert row == pytest.approx(expected_row, abs=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_reference_is_spread_like_the_policy(
    ranks: RankPool, model: Path, layout: str
) -> None:
    trainer = build(ranks, model, "cross_entropy", LAYOUTS[layout])
    sequences = [TrainSequence(s.tokens, s.loss_mask) for s in batch(0)[1]]
    before = await trainer.logprobs(sequences)
    await trainer.hold_reference()
    await losses(trainer, 0, 1)
    held = await trainer.logprobs(sequences, reference=True)
    assert all(map(np.array_equal, held, before))
    assert not any(map(np.array_equal, await trainer.logprobs(sequences), before))
    await trainer.close()


@pytest.mark.parametrize("schedule", ["GPipe", "Interleaved1F1B"])
async def test_schedules_of_a_pipeline(
    ranks: RankPool, tmp_path_factory: pytest.TempPathFactory, schedule: str
) -> None:
    folder = make_model(tmp_path_factory.mktemp("four"), "qwen3", layers=4)
    alone = build(ranks, folder, "cross_entropy", {}, ranks=1)
    expected = await losses(alone, 0, 2)
    sequences = [TrainSequence(s.tokens, s.loss_mask) for s in batch(0)[1]]
    rows = await alone.logprobs(sequences)
    await alone.close()
    layout = {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": schedule}
    trainer = build(ranks, folder, "cross_entropy", layout)
    assert_same(await losses(trainer, 0, 2), expected)
    for row, other in zip(await trainer.logprobs(sequences), rows, strict=True):
        assert row == pytest.approx(other, abs=1e-3)  # after two large steps
    await trainer.close()


class Everything(Smooths):
    """Asks for all that several ranks can give, wherever no rank has a part of the vocabulary."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        parts = [loss(logprobs, batch, outputs) for loss in (super().__call__, *OTHERS)]
        return LossOutput(sum((part.sum for part in parts), torch.zeros(())), parts[0].count)


OTHERS = (Sharpens(), Shrinks())
EVERYTHING = select(
    "loss",
    lambda settings, context: Everything(),
    needs={*FIELDS, "top_logprobs:5", "log_softmax", "hidden_states"},
)
SHRINKS = select("loss", lambda settings, context: Shrinks(), needs={*FIELDS, "hidden_states"})


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_two_ranks_give_a_loss_what_one_does(
    ranks: RankPool, model: Path, alone: dict[str, Any], layout: str
) -> None:
    name, loss = ("shrinks", SHRINKS) if layout == "tensor" else ("everything", EVERYTHING)
    if name not in alone:
        single = build(ranks, model, loss, {}, ranks=1)
        alone[name] = await losses(single, last=3)
        await single.close()
    trainer = build(ranks, model, loss, LAYOUTS[layout])
    assert_same(await losses(trainer, last=3), alone[name])
    await trainer.close()


def test_what_no_rank_can_give_is_refused(model: Path) -> None:
    context = BuildContext(
        model=ModelSection(path=model),
        training=TRAINING,
        distributed=DistributedSection(**LAYOUTS["tensor"]),
        loss=EVERYTHING,
        world_size=2,
    )
    with pytest.raises(UsageError) as refused:
        check_trainer(TitanTrainerSettings(device="cpu"), context)
    assert str(refused.value) == (
        "distributed.tensor_parallel_degree: loss 'mine' needs log_softmax, top_logprobs, and no "
        "rank has the whole vocabulary; use 1"
    )
