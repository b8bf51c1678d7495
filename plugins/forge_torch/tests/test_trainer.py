"""The trainer ``torch``: the conformance suite, and what only it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forge_core import (
    DistributedSection,
    ModelSection,
    Selection,
    Trainer,
    TrainingSection,
    TrainSequence,
    UsageError,
)
from forge_testing.conformance.trainer import MakeTrainer, TrainerConformance, make_sequences
from forge_testing.context import linear
from forge_torch.plugin import TRAINER
from forge_torch.settings import TorchTrainerSettings
from forge_torch.trainer.trainer import TorchTrainer


def _selection(**settings: object) -> Selection[Trainer]:
    parsed = TorchTrainerSettings.model_validate({"device": "cpu", **settings})
    return Selection(family="trainer", component=TRAINER, settings=parsed)


class TestTorch(TrainerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Trainer]:
        return _selection()

    async def test_it_runs_packed(self, make: MakeTrainer) -> None:
        trainer = await make()
        assert isinstance(trainer, TorchTrainer)
        assert trainer.policy.packed
        assert trainer.policy.chunked

    async def test_gradients_do_not_depend_on_the_split(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        sequences = make_sequences(model_folder)
        seen = []
        for size in (8, 4, 1):
            trainer = await make("clipped", training=TrainingSection(max_grad_norm=None))
            assert isinstance(trainer, TorchTrainer)
            gradients = _record_gradients(trainer)
            await trainer.train_step([sequences[i : i + size] for i in range(0, 8, size)])
            seen.append(gradients)
        for other in seen[1:]:
            for name, gradient in other.items():
                torch.testing.assert_close(gradient, seen[0][name], rtol=1e-5, atol=1e-6)

    async def test_more_than_one_process_is_refused(self, make: MakeTrainer) -> None:
        with pytest.raises(UsageError, match=r"distributed\.strategy.*titan"):
            await make(distributed=DistributedSection(strategy="fsdp"))

    async def test_a_schedule_without_an_end_is_refused(self, make: MakeTrainer) -> None:
        with pytest.raises(UsageError, match=r"training\.steps"):
            await make(training=TrainingSection(), schedule=linear())

    async def test_weights_may_be_kept_in_bfloat16(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make(model=ModelSection(path=model_folder, dtype="bfloat16"))
        assert isinstance(trainer, TorchTrainer)
        before = [p.detach().clone() for p in trainer.policy.model.parameters()]
        result = await trainer.train_step([make_sequences(model_folder)])
        assert 4 < result.loss < 5
        after = list(trainer.policy.model.parameters())
        assert all(p.dtype == torch.bfloat16 for p in after)
        assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


class TestPadded(TrainerConformance):
    """The general way, for models that cannot be packed: the same numbers."""

    @pytest.fixture
    def selection(self) -> Selection[Trainer]:
        return _selection(packed=False)


class TestSplitAndCheckpointed(TrainerConformance):
    """Splitting further and computing activations twice change no number."""

    @pytest.fixture
    def selection(self) -> Selection[Trainer]:
        return _selection(max_tokens_per_micro_batch=20, gradient_checkpointing=True)

    async def test_no_forward_pass_is_larger_than_allowed(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        assert isinstance(trainer, TorchTrainer)
        sizes: list[int] = []
        trainer.policy.model.base_model.register_forward_pre_hook(
            lambda module, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        sequences = make_sequences(model_folder)
        await trainer.train_step([sequences])
        assert sum(sizes) == sum(len(s.tokens) for s in sequences)
        assert len(sizes) > 4
        assert [size for size in sizes if size > 20] == [30]  # a sequence longer than the bound

    async def test_layers_are_computed_twice(self, make: MakeTrainer, model_folder: Path) -> None:
        trainer = await make()
        assert isinstance(trainer, TorchTrainer)
        calls: list[int] = []
        first = trainer.policy.model.base_model.layers[0].mlp
        first.register_forward_pre_hook(lambda module, args: calls.append(1))
        sequence = TrainSequence([3, 4, 5], [False, True, True])
        await trainer.train_step([[sequence]])
        assert len(calls) == 2


def _record_gradients(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    gradients: dict[str, torch.Tensor] = {}

    def record(optimizer: object, args: object, kwargs: object) -> None:
        for name, parameter in trainer.policy.model.named_parameters():
            assert parameter.grad is not None
            gradients[name] = parameter.grad.clone()

    trainer.optimizer.register_step_pre_hook(record)
    return gradients
