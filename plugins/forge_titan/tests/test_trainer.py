"""The trainer ``titan`` in one process: the conformance suite, and what only it does."""

from __future__ import annotations

import functools
import gc
import logging
from pathlib import Path

import pytest
import torch

from forge_core import (
    DistributedSection,
    Selection,
    Trainer,
    TrainingSection,
    TrainSequence,
    UsageError,
)
from forge_grpo.plugin import forge_losses as grpo_losses
from forge_testing.conformance.trainer import MakeTrainer, TrainerConformance, make_sequences
from forge_testing.context import bare_context
from forge_titan import policy
from forge_titan.plugin import TRAINER
from forge_titan.settings import TitanTrainerSettings
from forge_titan.trainer import TitanTrainer


def _selection(**settings: object) -> Selection[Trainer]:
    parsed = TitanTrainerSettings.model_validate({"device": "cpu", **settings})
    return Selection(family="trainer", component=TRAINER, settings=parsed)


class TestTitan(TrainerConformance):
    @pytest.fixture
    def selection(self) -> Selection[Trainer]:
        return _selection()

    async def test_the_host_process_stays_as_it_was(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        """TorchTitan's own trainer turns garbage collection off and takes the root logger."""

        def state() -> tuple[object, ...]:
            root = logging.getLogger()
            return (
                gc.isenabled(),
                torch.autograd.is_multithreading_enabled(),
                torch.get_default_dtype(),
                torch.is_grad_enabled(),
                root.level,
                tuple(root.handlers),
            )

        before = state()
        trainer = await make(distributed=DistributedSection(precision="bf16"))
        await trainer.train_step([make_sequences(model_folder)])
        await trainer.close()
        assert state() == before

    async def test_one_process_in_float32_needs_no_process_group(self, make: MakeTrainer) -> None:
        await make()
        assert not torch.distributed.is_initialized()

    async def test_the_last_trainer_to_close_leaves_no_process_group(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        low = DistributedSection(precision="bf16")
        batch = [make_sequences(model_folder)]
        first, second = await make(distributed=low), await make(distributed=low)
        await first.close()
        await second.train_step(batch)
        await second.close()
        assert not torch.distributed.is_initialized()
        third = await make(distributed=low)
        await third.train_step(batch)
        await third.close()
        assert not torch.distributed.is_initialized()


async def test_no_forward_pass_is_larger_than_allowed(tiny_model: Path) -> None:
    context = bare_context(tiny_model)
    selection = _selection(max_tokens_per_micro_batch=20)
    trainer, whole = selection.build(context), _selection().build(context)
    assert isinstance(trainer, TitanTrainer)
    sizes: list[int] = []
    trainer.policy.parts[0].tok_embeddings.register_forward_pre_hook(
        lambda module, args: sizes.append(args[0].numel())
    )
    sequences = make_sequences(tiny_model)
    rows = await trainer.logprobs(sequences)
    assert len(sizes) > 3
    assert sum(sizes) == sum(len(s.tokens) for s in sequences)
    assert all(size <= 20 or size == 30 for size in sizes)
    for row, expected in zip(rows, await whole.logprobs(sequences), strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    await trainer.close()
    await whole.close()


def test_layers_that_cannot_be_compiled_are_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "missing_for_compilation", lambda: "a C++ compiler (g++)")
    context = bare_context(tiny_model, distributed=DistributedSection(compile=True))
    with pytest.raises(UsageError, match=r"distributed\.compile: .* without a C\+\+ compiler"):
        _selection().build(context)


async def test_compiled_layers_take_any_number_of_sequences(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are compiled without graph breaks, so one recompilation too many ends a run."""
    traced_only = functools.partial(policy.CompileConfig, backend="aot_eager")
    monkeypatch.setattr(policy, "CompileConfig", traced_only)
    monkeypatch.setattr(policy, "missing_for_compilation", lambda: None)
    torch._dynamo.reset()
    compiled = _selection().build(
        bare_context(tiny_model, distributed=DistributedSection(compile=True))
    )
    plain = _selection().build(bare_context(tiny_model))
    for count in range(1, 13):
        rows = [
            TrainSequence([1 + i % 9 for i in range(length)], [False] + [True] * (length - 1))
            for length in (3 + 11 * index % 90 for index in range(count))
        ]
        found, expected = await compiled.logprobs(rows), await plain.logprobs(rows)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
    torch._dynamo.reset()


async def test_ranks_exchange_numbers_and_no_tensors(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA tensor would be restored on the GPU of the rank that sent it."""
    component = next(iter(grpo_losses()))
    loss = Selection(family="loss", component=component, settings=component.settings())
    trainer = _selection().build(
        bare_context(tiny_model, loss=loss, training=TrainingSection(steps=2))
    )
    assert isinstance(trainer, TitanTrainer)
    exchanged: list[object] = []
    gather = trainer.ranks.gather
    monkeypatch.setattr(
        trainer.ranks, "gather", lambda value, mesh: exchanged.append(value) or gather(value, mesh)
    )
    row = {"advantages": 1.0, "sampler_logprobs": [0.0, -1.0, -2.0]}
    result = await trainer.train_step([[TrainSequence([1, 2, 3], [False, True, True], row)]])
    assert "mismatch/logprob_abs_max" in result.metrics
    parts = [exchanged]
    for part in parts:
        assert not isinstance(part, torch.Tensor)
        if isinstance(part, (list, tuple)):
            parts.extend(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
