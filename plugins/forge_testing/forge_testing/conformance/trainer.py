"""What every trainer does, against a plain loop of transformers and AdamW.

Inherit it, and say which trainer with the ``selection`` fixture.

.. code-block:: python

    class TestMine(TrainerConformance):
        @pytest.fixture
        def selection(self):
            return Selection(family="trainer", component=MINE, settings=MineSettings())
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from forge_core import (
    BuildContext,
    DistributedSection,
    ForgeError,
    Loss,
    LossBatch,
    LossOutput,
    ModelOutputs,
    ModelSection,
    RunFailed,
    Selection,
    Settings,
    TopLogprobs,
    Trainer,
    TrainingSection,
    TrainSequence,
    UsageError,
    ValueTrainer,
    WeightManifest,
    WeightsNotFinite,
)
from forge_tensors.checksum import checksum
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import adamw, bare_context, cosine, select

Weights = dict[str, torch.Tensor]
MakeTrainer = Callable[..., Awaitable[Trainer]]

TRAINING = TrainingSection(
    steps=6,
    learning_rate=1e-2,
    warmup_steps=2,
    max_grad_norm=0.5,
)
OPTIMIZER = adamw(weight_decay=0.1, betas=(0.9, 0.95))
SCHEDULE = cosine()
RATES = [1e-2 * part for part in (1 / 3, 2 / 3, 1, (1 + math.sqrt(0.5)) / 2, 0.5)]
"""Learning rates of the first five of ``TRAINING``'s steps."""


class TrainerConformance(Suite):
    """Inherit with a ``selection`` fixture; override ``model_folder`` for another model."""

    time_limit: ClassVar[float] = 900.0  # engines take minutes to start

    @pytest.fixture
    def selection(self) -> Selection[Trainer]:
        """The trainer under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def model_folder(self, tiny_model: Path) -> Path:
        """Where every trainer starts from: float32, small."""
        return tiny_model

    @pytest.fixture
    async def make(
        self, selection: Selection[Trainer], model_folder: Path
    ) -> AsyncIterator[MakeTrainer]:
        """``await make(loss="nll", **sections)``: a trainer; closed when the test ends."""
        made: list[Trainer] = []

        async def make(loss: str = "nll", **sections: Any) -> Trainer:
            context = BuildContext(
                model=sections.get("model", ModelSection(path=model_folder)),
                training=sections.get("training", TRAINING),
                distributed=sections.get("distributed", DistributedSection()),
                loss=LOSSES[loss],
                optimizer=sections.get("optimizer", OPTIMIZER),
                schedule=sections.get("schedule", None if "training" in sections else SCHEDULE),
                transport=select("transport", _build_kept),
            )
            trainer = built(selection, context)
            made.append(trainer)
            return trainer

        yield make
        for trainer in made:
            await trainer.close()

    @pytest.mark.parametrize("loss", ["nll", "clipped"])
    async def test_steps_are_those_of_a_plain_loop(
        self, make: MakeTrainer, model_folder: Path, loss: str
    ) -> None:
        trainer = await make(loss)
        plain = PlainLoop(model_folder, LOSSES[loss].build(bare_context()))
        for step, rate in enumerate(RATES):
            sequences = make_sequences(model_folder, seed=step)
            result = await trainer.train_step([sequences[:3], sequences[3:]], temperature=0.7)
            expected_loss, expected_norm = plain.step(sequences, rate, temperature=0.7)
            assert result.loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
            assert result.grad_norm == pytest.approx(expected_norm, rel=1e-5)
            assert result.learning_rate == pytest.approx(rate)
        assert _distance(await _weights(trainer), plain.weights) < 1e-4

    async def test_the_way_of_splitting_changes_nothing(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        sequences = make_sequences(model_folder)
        results, weights = [], []
        for size in (8, 4, 1):
            trainer = await make("clipped")
            parts = [sequences[i : i + size] for i in range(0, len(sequences), size)]
            results.append(await trainer.train_step(parts))
            weights.append(await _weights(trainer))
        assert all(_distance(other, weights[0]) < 1e-5 for other in weights)
        for result in results[1:]:
            assert result.loss == pytest.approx(results[0].loss, abs=1e-6)
            assert result.grad_norm == pytest.approx(results[0].grad_norm, rel=1e-6, abs=1e-6)
            assert result.metrics == pytest.approx(results[0].metrics, abs=1e-5)
            assert result.tokens == results[0].tokens == sum(len(s.tokens) for s in sequences)
            assert result.trained_tokens == sum(sum(s.loss_mask) for s in sequences)

    @pytest.mark.parametrize("output", ["top_logprobs", "log_softmax", "hidden_states", "values"])
    async def test_losses_get_what_they_ask_of_the_policy(
        self, selection: Selection[Trainer], make: MakeTrainer, model_folder: Path, output: str
    ) -> None:
        if output not in selection.gives:
            pytest.skip(f"the trainer gives no {output}")
        loss = LOSSES[output].build(bare_context())
        sequences = make_sequences(model_folder)
        plain = PlainLoop(model_folder, loss)
        expected = [plain.step(sequences, rate, temperature=0.7) for rate in RATES[:2]]
        for size in (8, 3, 1):
            trainer = await make(output)
            parts = [sequences[i : i + size] for i in range(0, len(sequences), size)]
            for expected_loss, expected_norm in expected:
                result = await trainer.train_step(parts, temperature=0.7)
                assert result.loss == pytest.approx(expected_loss, rel=1e-5)
                assert result.grad_norm == pytest.approx(expected_norm, rel=1e-4)
            assert _distance(await _weights(trainer), plain.weights) < 1e-4

    async def test_a_value_head_is_trained_saved_and_resumed_with_the_policy(
        self,
        selection: Selection[Trainer],
        make: MakeTrainer,
        model_folder: Path,
        tmp_path: Path,
    ) -> None:
        if "values" not in selection.gives:
            pytest.skip("the trainer gives no values")
        batches = [[make_sequences(model_folder, seed=seed)] for seed in range(4)]
        first, second = [cast(ValueTrainer, await make("values")) for _ in range(2)]
        assert not any(row.any() for row in await first.values(batches[0][0]))
        for batch in batches[:2]:
            await first.train_step(batch)
        await first.save(tmp_path)
        await second.load(tmp_path)
        for batch in batches[2:]:
            values = await first.values(batch[0])
            for sequence, row, other in zip(
                batch[0], values, await second.values(batch[0]), strict=True
            ):
                assert np.array_equal(row, other)
                assert row[sequence.loss_mask].all()
                assert not row[~sequence.loss_mask].any()
            assert await first.train_step(batch) == await second.train_step(batch)
        expected, actual = await _weights(first), await _weights(second)
        assert checksum(actual.items()) == checksum(expected.items())
        assert not any("value" in name for name in actual), "the value head was published"
        with pytest.raises(UsageError, match="values"):
            await cast(ValueTrainer, await make()).values(batches[0][0])

    async def test_sequences_that_belong_together_are_not_parted(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        sequences = [
            TrainSequence(s.tokens, s.loss_mask, {"chosen": 1.0 - 2.0 * (index >= 4)}, index % 4)
            for index, s in enumerate(make_sequences(model_folder))
        ]
        plain = PlainLoop(model_folder, Pairs())
        expected_loss, _ = plain.step(sequences, RATES[0], temperature=1.0)
        for parts in ([[*range(8)]], [[4, 0, 1, 5], [7, 6, 2, 3]], [[i, i + 4] for i in range(4)]):
            trainer = await make("pairs")
            result = await trainer.train_step([[sequences[i] for i in part] for part in parts])
            assert result.loss == pytest.approx(expected_loss, rel=1e-5)
            assert _distance(await _weights(trainer), plain.weights) < 1e-4
        with pytest.raises(UsageError, match="group 1 are in micro-batches 1 and 2"):
            await trainer.train_step([sequences[:2], sequences[5:6]])

    async def test_logprobs_are_those_of_a_forward_pass(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        sequences = make_sequences(model_folder)
        plain = PlainLoop(model_folder, Nll())
        rows = await trainer.logprobs(sequences, temperature=0.7)
        for sequence, row in zip(sequences, rows, strict=True):
            assert len(row) == len(sequence.tokens)
            expected = plain.scores(sequence, temperature=0.7).logprobs.tolist()
            trained = list(itertools.compress(row, sequence.loss_mask))
            assert trained == pytest.approx(expected, abs=1e-5)
            others = itertools.compress(row, [not is_trained for is_trained in sequence.loss_mask])
            assert not any(others)

    async def test_a_sequence_does_not_feel_its_neighbours(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        sequences = make_sequences(model_folder)
        together = await trainer.logprobs(sequences)
        for sequence, row in zip(sequences, together, strict=True):
            (alone,) = await trainer.logprobs([sequence])
            assert row == pytest.approx(alone, abs=1e-5)

    async def test_save_and_load_go_on_exactly(
        self, make: MakeTrainer, model_folder: Path, tmp_path: Path
    ) -> None:
        batches = [[make_sequences(model_folder, seed=seed)] for seed in range(4)]
        first = await make("clipped")
        for batch in batches[:2]:
            await first.train_step(batch)
        await first.save(tmp_path)
        second = await make("clipped")
        await second.load(tmp_path)
        for batch in batches[2:]:
            assert await first.train_step(batch) == await second.train_step(batch)
        expected, actual = await _weights(first), await _weights(second)
        assert checksum(actual.items()) == checksum(expected.items())

    async def test_after_a_load_the_optimizer_has_the_settings_of_the_config(
        self, make: MakeTrainer, model_folder: Path, tmp_path: Path
    ) -> None:
        """A run that is resumed with another weight decay, betas or learning rate uses them."""
        batches = [make_sequences(model_folder, seed=seed) for seed in range(3)]
        first = await make()
        plain = PlainLoop(model_folder, Nll())
        for batch, rate in zip(batches[:2], RATES[:2], strict=True):
            await first.train_step([batch])
            plain.step(batch, rate, temperature=1.0)
        await first.save(tmp_path)
        second = await make(
            training=TRAINING.model_copy(update={"learning_rate": 3e-2}),
            optimizer=adamw(weight_decay=5.0, betas=(0.5, 0.6)),
            schedule=SCHEDULE,
        )
        await second.load(tmp_path)
        for group in plain.optimizer.param_groups:
            group["betas"] = (0.5, 0.6)
            group["weight_decay"] = 5.0 if group["weight_decay"] else 0.0
        result = await second.train_step([batches[2]])
        plain.step(batches[2], 3 * RATES[2], temperature=1.0)
        assert result.learning_rate == pytest.approx(3 * RATES[2])
        assert _distance(await _weights(second), plain.weights) < 1e-4

    async def test_what_is_saved_is_a_model_folder(
        self, make: MakeTrainer, model_folder: Path, tmp_path: Path
    ) -> None:
        from forge_models.folder import load_model, load_tokenizer

        trainer = await make()
        await trainer.train_step([make_sequences(model_folder)])
        await trainer.save(tmp_path)
        saved = dict(load_model(tmp_path).state_dict())
        for name, weight in (await _weights(trainer)).items():
            assert torch.equal(saved[name], weight)
        assert load_tokenizer(tmp_path).get_vocab() == load_tokenizer(model_folder).get_vocab()

    async def test_published_weights_are_the_weights(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        manifest, weights = await _publish(trainer)
        in_folder: Weights = {}
        for file in sorted(model_folder.glob("*.safetensors")):
            in_folder |= load_file(file)
        assert weights.keys() == in_folder.keys()
        assert checksum(weights.items()) == checksum(in_folder.items()) == manifest.checksum
        await trainer.train_step([make_sequences(model_folder)])
        later, changed = await _publish(trainer)
        assert later.version == manifest.version + 1
        assert later.checksum == checksum(changed.items()) != manifest.checksum

    async def test_the_reference_stays_as_it_was(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        sequences = make_sequences(model_folder)
        before = await trainer.logprobs(sequences)
        await trainer.hold_reference()
        await trainer.train_step([sequences])
        held = await trainer.logprobs(sequences, reference=True)
        assert all(map(np.array_equal, held, before))
        assert not any(map(np.array_equal, await trainer.logprobs(sequences), before))

    async def test_the_reference_must_be_held_first(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        with pytest.raises(ForgeError, match="reference"):
            await trainer.logprobs(make_sequences(model_folder), reference=True)

    @pytest.mark.parametrize("loss", ["nan", "steep"])
    async def test_a_loss_or_gradient_that_is_not_finite_leaves_the_weights_alone(
        self, make: MakeTrainer, model_folder: Path, loss: str
    ) -> None:
        trainer = await make(loss)
        untouched = await make(loss)
        bad = make_sequences(model_folder, trap=True)
        good = make_sequences(model_folder)
        with pytest.raises(RunFailed, match=r"finite|nan") as raised:
            await trainer.train_step([good, bad])
        assert "\n" not in str(raised.value)
        before, after = await _weights(untouched), await _weights(trainer)
        assert checksum(after.items()) == checksum(before.items())
        assert await trainer.train_step([good]) == await untouched.train_step([good])

    async def test_weights_that_are_not_finite_are_neither_saved_nor_published(
        self, make: MakeTrainer, model_folder: Path, tmp_path: Path
    ) -> None:
        """Finite loss and gradient, and a step that is too large for the weights' type."""
        huge = TrainingSection(steps=6, learning_rate=1e38)
        trainer = await make(training=huge, optimizer=adamw(weight_decay=10.0))
        await trainer.train_step([make_sequences(model_folder)])
        expected = r"after step 1: weight \S+ is not finite \([\d,]+ of [\d,]+ values\)$"
        for forbidden in (trainer.publish(next(_versions)), trainer.save(tmp_path)):
            with pytest.raises(WeightsNotFinite, match=expected):
                await forbidden
        assert Kept.last == {}
        with pytest.raises(WeightsNotFinite, match=expected):
            await trainer.train_step([make_sequences(model_folder)])

    async def test_nothing_to_train_on_changes_nothing(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        before = await _weights(trainer)
        prompts = [
            TrainSequence(s.tokens, [False] * len(s.tokens), s.fields)
            for s in make_sequences(model_folder)
        ]
        nothing: list[list[list[TrainSequence]]] = [[prompts], [[]], []]
        for micro_batches in nothing:
            result = await trainer.train_step(micro_batches)
            assert (result.loss, result.grad_norm, result.trained_tokens) == (0.0, 0.0, 0)
        after = await _weights(trainer)
        assert checksum(after.items()) == checksum(before.items())

    async def test_the_distance_to_the_sampler_is_measured(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make()
        sequences = make_sequences(model_folder)
        rows = await trainer.logprobs(sequences, temperature=0.7)
        for shift in (0.0, 0.5):
            told = [
                TrainSequence(s.tokens, s.loss_mask, {"sampler_logprobs": np.array(row) - shift})
                for s, row in zip(sequences, rows, strict=True)
            ]
            trainer = await make()
            metrics = (await trainer.train_step([told], temperature=0.7)).metrics
            kl = math.exp(shift) - 1 - shift
            assert metrics["mismatch/logprob_abs_mean"] == pytest.approx(shift, abs=1e-5)
            assert metrics["mismatch/logprob_abs_max"] == pytest.approx(shift, abs=1e-5)
            assert metrics["mismatch/kl"] == pytest.approx(kl, abs=1e-5)

    async def test_fields_may_be_arrays_and_tensors(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        sequences = make_sequences(model_folder)
        results = []
        kinds: tuple[Callable[[Any], Any], ...] = (np.ndarray.tolist, np.array, torch.tensor)
        for convert in kinds:
            trainer = await make("clipped")
            converted = [
                TrainSequence(
                    convert(s.tokens),
                    convert(s.loss_mask),
                    {
                        name: value if isinstance(value, float) else convert(value)
                        for name, value in s.fields.items()
                    },
                )
                for s in sequences
            ]
            results.append(await trainer.train_step([converted[:3], converted[3:]]))
        assert results[1] == results[2] == results[0]

    async def test_a_sequence_longer_than_the_models_window_is_refused(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        window = AutoConfig.from_pretrained(
            model_folder, trust_remote_code=False
        ).max_position_embeddings
        trainer = await make()
        before = await _weights(trainer)
        long = TrainSequence([5] * (window + 1), [False] + [True] * window)
        expected = rf"{window + 1} tokens.*window of {window}"
        with pytest.raises(UsageError, match=expected):
            await trainer.train_step([[long]])
        with pytest.raises(UsageError, match=expected):
            await trainer.logprobs([long])
        after = await _weights(trainer)
        assert checksum(after.items()) == checksum(before.items())

    async def test_a_token_outside_the_models_vocabulary_is_named(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        vocabulary = AutoConfig.from_pretrained(model_folder, trust_remote_code=False).vocab_size
        trainer = await make()
        before = await _weights(trainer)
        known = TrainSequence([3, 4, 5], [False, True, True])
        for token in (vocabulary + 7, -3):
            foreign = TrainSequence([3, token, 5], [False, True, True])
            with pytest.raises(ForgeError, match=rf"(?<!\d){token}\b"):
                await trainer.train_step([[known], [foreign]])
            with pytest.raises(ForgeError, match=rf"(?<!\d){token}\b"):
                await trainer.logprobs([known, foreign])
        after = await _weights(trainer)
        assert checksum(after.items()) == checksum(before.items())

    async def test_a_field_that_the_loss_needs_and_does_not_get_is_named(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        trainer = await make("clipped")
        bare = [TrainSequence(s.tokens, s.loss_mask) for s in make_sequences(model_folder)]
        with pytest.raises(ForgeError, match="sampler_logprobs"):
            await trainer.train_step([bare])

    async def test_bfloat16_computation_is_near(
        self, make: MakeTrainer, model_folder: Path
    ) -> None:
        exact = await make()
        rough = await make(distributed=DistributedSection(precision="bf16"))
        for seed in range(2):
            batch = [make_sequences(model_folder, seed=seed)]
            expected, result = await exact.train_step(batch), await rough.train_step(batch)
            assert result.loss == pytest.approx(expected.loss, rel=0.02)
            assert result.grad_norm == pytest.approx(expected.grad_norm, rel=0.1)
            assert result.loss != expected.loss
        assert all(w.dtype == torch.float32 for w in (await _weights(rough)).values())


def make_sequences(folder: Path, seed: int = 0, trap: bool = False) -> list[TrainSequence]:
    """Eight sequences of unequal lengths, with the first ids (padding, end) among their tokens.

    Args:
        folder: of the model whose vocabulary they are drawn from.
        seed: of the drawing.
        trap: make the losses ``nan`` and ``steep`` go wrong in one token.
    """
    from transformers import AutoConfig

    vocabulary = AutoConfig.from_pretrained(folder, trust_remote_code=False).vocab_size
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for index, length in enumerate((9, 4, 17, 2, 9, 30, 5, 12)):
        tokens = torch.randint(vocabulary, (length,), generator=generator)
        tokens[torch.rand(length, generator=generator) < 0.2] = index % 2
        mask = torch.rand(length, generator=generator) < 0.7
        mask[0] = False
        mask[1] = True
        noise = torch.randn(length, generator=generator)
        fields: dict[str, float | torch.Tensor] = {
            "advantages": float(torch.randn((), generator=generator)),
            "sampler_logprobs": -4.5 + 0.5 * noise,
            "trap": float(trap and index == 3),
        }
        sequences.append(TrainSequence(tokens, mask, fields))
    return sequences


TOP = 5
"""Tokens that the loss ``top_logprobs`` asks for."""


@dataclass(frozen=True)
class PlainScores:
    """Of n trained tokens: logprobs [n], the vocabulary's [n, V], and hidden states [n, H]."""

    logprobs: torch.Tensor
    log_softmax: torch.Tensor
    hidden_states: torch.Tensor


class PlainLoop:
    """What a person would write: one sequence at a time, whole logits, autograd, AdamW.

    Args:
        folder: the model.
        loss: to train with.
    """

    def __init__(self, folder: Path, loss: Loss) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
        )
        self.loss = loss
        self.value_head = torch.nn.Linear(self.model.config.hidden_size, 1)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)
        parameters = [*self.model.parameters(), *self.value_head.parameters()]
        self.parameters = parameters
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)

    @property
    def weights(self) -> Weights:
        return dict(self.model.state_dict())

    def scores(self, sequence: TrainSequence, temperature: float) -> PlainScores:
        """Of the trained tokens of one sequence."""
        tokens = torch.tensor(sequence.tokens).long()
        output = self.model(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
        trained = torch.tensor(sequence.loss_mask)[1:]
        log_p = torch.log_softmax(output.logits[0, :-1] / temperature, -1)
        return PlainScores(
            log_p.gather(1, tokens[1:, None])[:, 0][trained],
            log_p[trained],
            output.hidden_states[-1][0, :-1][trained],
        )

    def step(
        self, sequences: Sequence[TrainSequence], rate: float, temperature: float
    ) -> tuple[float, float]:
        """One optimizer step; loss and norm of the gradient."""
        scores = [self.scores(sequence, temperature) for sequence in sequences]
        logprobs = [each.logprobs for each in scores]
        log_p = torch.cat([each.log_softmax for each in scores])
        masks = [torch.tensor(s.loss_mask) for s in sequences]
        fields = {
            name: torch.cat(
                [
                    torch.as_tensor(s.fields[name]).expand(len(mask))[mask]
                    for s, mask in zip(sequences, masks, strict=True)
                ]
            )
            for name in sequences[0].fields
        }
        owners = [torch.full((len(row),), i) for i, row in enumerate(logprobs)]
        numbers = [index if s.group is None else s.group for index, s in enumerate(sequences)]
        groups, count = torch.tensor(numbers), max(numbers) + 1
        batch = LossBatch(torch.cat(owners), len(sequences), fields, groups, count)
        top = log_p.topk(TOP)
        outputs = {
            "entropy": -(log_p.exp() * log_p).sum(-1),
            "top_logprobs": TopLogprobs(top.indices, top.values),
            "hidden_states": torch.cat([each.hidden_states for each in scores]),
        }
        outputs["values"] = self.value_head(outputs["hidden_states"]).squeeze(-1)
        if hasattr(self.loss, "terms"):
            outputs["terms"] = self.loss.terms(log_p, batch)
        output = self.loss(torch.cat(logprobs), batch, ModelOutputs(outputs))
        loss = output.sum / output.count
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return float(loss.detach()), float(norm)


class Nll:
    """Cross-entropy."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        nll = -logprobs.sum()
        return LossOutput(nll, logprobs.numel(), {"nll": (nll.detach(), logprobs.numel())})


class Clipped:
    """PPO's clipped objective with an entropy bonus: uses fields, ratios and entropy."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        ratio = (logprobs - batch.field("sampler_logprobs")).exp()
        advantages = batch.field("advantages")
        objective = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        total = -(objective + 0.1 * outputs.entropy).sum()
        return LossOutput(total, logprobs.numel(), {"ratio": (ratio.detach().sum(), ratio.numel())})


class Sharpens:
    """Weighs the most probable tokens, each by its place and the advantage."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        top = outputs.top_logprobs
        weights = 1.0 / (1 + torch.arange(top.logprobs.shape[1], device=logprobs.device))
        odd = 1.0 + top.tokens % 2  # it depends on which tokens they are
        each = (top.logprobs * odd * weights).sum(-1) * batch.field("advantages")
        return LossOutput(-(each + logprobs).sum(), logprobs.numel())


class Smooths:
    """Pulls whole distributions towards the uniform one, and towards little entropy."""

    def terms(self, log_softmax: torch.Tensor, batch: LossBatch) -> torch.Tensor:
        entropy = -(log_softmax.exp() * log_softmax).sum(-1)
        even = -log_softmax.mean(-1) * batch.field("sampler_logprobs").abs()
        return torch.stack([even, entropy * batch.field("advantages")], -1)

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        even, entropy = outputs.terms.unbind(-1)
        return LossOutput((0.1 * even - entropy - logprobs).sum(), logprobs.numel())


class Shrinks:
    """Makes hidden states small."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        size = outputs.hidden_states.float().square().mean(-1) * batch.field("advantages").abs()
        return LossOutput((size - logprobs).sum(), logprobs.numel())


class Values:
    """Squared error of the values, beside cross-entropy."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        error = (outputs.values - batch.field("sampler_logprobs")).square()
        return LossOutput((0.1 * error - logprobs).sum(), logprobs.numel())


class Pairs:
    """Of two sequences, make the chosen one more probable than the other: -log sigmoid of the
    difference of their logprobs, as in DPO (arXiv:2305.18290, eq. 7) without a reference."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        assert batch.group is not None
        alone = batch.group.bincount(minlength=batch.num_groups) != 2
        assert not alone.any(), "a pair was parted"
        margins = logprobs.new_zeros(batch.num_groups).index_add(
            0, batch.group[batch.sequence], batch.field("chosen") * logprobs
        )
        return LossOutput(-torch.nn.functional.logsigmoid(margins).sum(), batch.num_groups)


class NotANumber(Nll):
    """NaN where the trap is set."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        trap = torch.where(batch.field("trap") > 0, torch.nan, 1.0)
        return LossOutput(-(trap * logprobs).sum(), logprobs.numel())


class Steep(Nll):
    """Finite, with an infinite gradient where the trap is set: the root of zero."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        zeros = (logprobs - logprobs.detach())[batch.field("trap") > 0]
        return LossOutput(zeros.sqrt().sum() - logprobs.sum(), logprobs.numel())


LOSSES: dict[str, Selection[Loss]] = {
    "nll": select("loss", lambda settings, context: Nll()),
    "clipped": select(
        "loss",
        lambda settings, context: Clipped(),
        needs={"advantages", "sampler_logprobs", "entropy"},
    ),
    "nan": select("loss", lambda settings, context: NotANumber(), needs={"trap"}),
    "steep": select("loss", lambda settings, context: Steep(), needs={"trap"}),
    "top_logprobs": select(
        "loss",
        lambda settings, context: Sharpens(),
        needs={"advantages", f"top_logprobs:{TOP}"},
    ),
    "log_softmax": select(
        "loss",
        lambda settings, context: Smooths(),
        needs={"advantages", "sampler_logprobs", "log_softmax"},
    ),
    "hidden_states": select(
        "loss", lambda settings, context: Shrinks(), needs={"advantages", "hidden_states"}
    ),
    "values": select(
        "loss", lambda settings, context: Values(), needs={"sampler_logprobs", "values"}
    ),
    "pairs": select("loss", lambda settings, context: Pairs(), needs={"chosen"}),
}


class Kept:
    """A transport that keeps a copy of what was published last, for the tests to look at."""

    last: Weights = {}  # noqa: RUF012

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        Kept.last = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        size = sum(tensor.nbytes for tensor in Kept.last.values())
        digest = checksum(Kept.last.items())
        return WeightManifest(version, digest, tensors=len(Kept.last), bytes=size)

    async def close(self) -> None:
        Kept.last = {}


def _build_kept(settings: Settings, context: BuildContext) -> Any:
    return Kept()


_versions = itertools.count()


async def _publish(trainer: Trainer) -> tuple[WeightManifest, Weights]:
    version = next(_versions)
    manifest = await trainer.publish(version)
    assert manifest.version == version
    return manifest, Kept.last


async def _weights(trainer: Trainer) -> Weights:
    return (await _publish(trainer))[1]


def _distance(actual: Weights, expected: Weights) -> float:
    """Root mean square of the differences. (Adam blows up the rounding of gradients near zero.)"""
    squares = [(actual[name] - expected[name]).square().flatten() for name in actual]
    return float(torch.cat(squares).mean().sqrt())
