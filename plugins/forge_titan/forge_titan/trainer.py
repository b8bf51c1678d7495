"""The trainer ``titan``: TorchTitan's models, parallelism and optimizers under Forge's losses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from forge_core import (
    BuildContext,
    FloatArray,
    Loss,
    OutputNeeds,
    RunFailed,
    StepResult,
    TrainSequence,
    Transport,
    UsageError,
    WeightManifest,
    WeightsNotFinite,
)
from forge_models.folder import copy_tokenizer
from forge_tensors.batch import pack
from forge_tensors.finite import first_not_finite
from forge_tensors.float32 import set_float32
from forge_tensors.limits import check_sequences
from forge_tensors.logprobs import Scores
from forge_tensors.loss_step import LossStep
from forge_tensors.metric_sums import MetricSums
from forge_tensors.schedule import learning_rate
from forge_tensors.units import units
from forge_titan.batch_split import share
from forge_titan.hf_weights import hf_shards, hf_weights, load_weights, save_weights
from forge_titan.optimizer import make_optimizers, make_schedulers
from forge_titan.policy import Policy, local
from forge_titan.ranks import Ranks
from forge_titan.settings import TitanTrainerSettings
from forge_titan.state import load_state, save_state
from forge_titan.torchtitan_api import clip_grad_norm_

T = TypeVar("T")

EMPTY = TrainSequence([0], [False])
"""What a rank with nothing to train on puts through the model, because the others wait for it."""


class TitanTrainer:
    """Implements ``forge_core.Trainer``, on one rank or on one of many.

    Every rank is called with the same arguments, trains on its share of the sequences, and returns
    the same result. A step in which the loss counts nothing changes neither weights nor optimizer;
    it still is a step of the schedule.

    Raises:
        UsageError: something is asked for that this trainer does not do.
        DataError: the model folder cannot be loaded, or TorchTitan has no such model.
    """

    def __init__(self, settings: TitanTrainerSettings, context: BuildContext) -> None:
        learning_rate(context.training, 0)  # a schedule without an end is refused here
        if context.model.path is None:
            raise UsageError("model.path: trainer titan needs a model folder")
        self.settings = settings
        self.training = context.training
        self.distributed = context.distributed
        self.folder = context.model.path
        self.dtype: torch.dtype = getattr(torch, context.model.dtype)
        self._loss: Loss | None = context.loss.build(context) if context.loss else None
        self._needs = context.loss.outputs if context.loss else OutputNeeds()
        self._transport: Transport | None = (
            context.transport.build(context) if context.transport else None
        )
        torch.manual_seed(context.seed)
        self.ranks = Ranks(context, settings.device)
        try:
            set_float32(self.distributed, self.dtype, self.ranks.device)
            self.policy = self._policy()
        except BaseException:
            self.ranks.close()
            raise
        self.optimizers: Any = make_optimizers(self.policy.parts, self.training)
        self.schedulers: Any = make_schedulers(self.optimizers, self.training)
        self.reference: Policy | None = None

    @property
    def steps_done(self) -> int:
        return int(self.schedulers.schedulers[0].last_epoch)

    async def train_step(
        self, micro_batches: Sequence[Sequence[TrainSequence]], *, temperature: float = 1.0
    ) -> StepResult:
        if self._loss is None:
            raise UsageError("loss.use: trainer titan was built without a loss and cannot train")
        step = LossStep(self._loss, self.ranks.device, self._needs)
        rate = float(self.schedulers.schedulers[0].get_last_lr()[0])
        sequences = self._checked(micro_batches)
        passes = self._passes(micro_batches)
        if self.ranks.world_size == 1:  # no other rank waits for an empty pass
            passes = [p for p in passes if any(sequences[i].loss_mask.any() for i in p)]
        batches = [pack([sequences[i] for i in p] or [EMPTY], self.ranks.device) for p in passes]

        def read(index: int, scores: Scores) -> torch.Tensor:
            if not passes[index]:
                return scores.logprobs.sum()
            return step.add(scores, batches[index].loss_batch)

        try:
            self.policy.run(
                batches,
                read,
                train=True,
                temperature=temperature,
                needs=self._needs,
                terms=[
                    step.terms(batch.loss_batch) if mine else None
                    for mine, batch in zip(passes, batches, strict=True)
                ],
            )
            total, count, means = self._over_ranks(step)
            norm = self._update(total, count)
        finally:
            self.optimizers.zero_grad()
        with warnings.catch_warnings():
            # A step that counted nothing moves the schedule and not the optimizer.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedulers.step()
        return StepResult(
            loss=total / count if count else 0.0,
            grad_norm=norm,
            learning_rate=rate,
            tokens=sum(len(sequence.tokens) for sequence in sequences),
            trained_tokens=sum(int(sequence.loss_mask.sum()) for sequence in sequences),
            metrics=means,
        )

    async def logprobs(
        self,
        sequences: Sequence[TrainSequence],
        *,
        reference: bool = False,
        temperature: float = 1.0,
    ) -> list[FloatArray]:
        model = self.reference if reference else self.policy
        if model is None:
            raise UsageError("logprobs of the reference were asked for before hold_reference")
        self._checked([sequences])
        bare = [TrainSequence(s.tokens, s.loss_mask) for s in sequences]
        passes = self._passes([sequences])
        batches = [pack([bare[i] for i in p] or [EMPTY], self.ranks.device) for p in passes]
        found: dict[int, FloatArray] = {}

        def read(index: int, scores: Scores) -> torch.Tensor:
            rows = batches[index].rows(scores.logprobs)
            found.update(zip(passes[index], rows, strict=False))
            return scores.logprobs

        model.run(batches, read, train=False, temperature=temperature)
        if batches:
            model.release()
        merged: dict[int, FloatArray] = {}
        for part in self.ranks.gather(self._from_head(found), "batch"):
            merged |= part
        return [merged[index] for index in range(len(sequences))]

    async def hold_reference(self) -> None:
        if self.reference is None:
            self.reference = self._policy()
            for _, parameter in self.reference.named_parameters():
                parameter.requires_grad_(False)
        self.reference.copy_from(self.policy)

    async def publish(self, version: int) -> WeightManifest:
        if self._transport is None:
            raise UsageError("transport.use: trainer titan was built without a transport")
        self._check_weights()
        manifest: WeightManifest | None = None
        if getattr(type(self._transport), "sharded", False):
            manifest = await self._transport.publish(version, hf_shards(self.policy))
        elif self.ranks.rank == 0:
            manifest = await self._transport.publish(version, hf_weights(self.policy))
        else:
            for _ in hf_weights(self.policy):
                pass  # gathered with the others, for rank 0
        published = self.ranks.from_first(manifest)
        assert published is not None
        return published

    async def save(self, folder: Path) -> None:
        self._check_weights()
        save_weights(self.policy, self.folder, folder)
        if self.ranks.rank == 0:
            copy_tokenizer(self.folder, folder)
        save_state(self.optimizers, self.schedulers, self.ranks, folder)

    async def load(self, folder: Path) -> None:
        load_weights(self.policy, folder)
        load_state(self.optimizers, self.schedulers, self.ranks, folder)

    async def close(self) -> None:
        try:
            if self._transport is not None:
                await self._transport.close()
        finally:
            self.ranks.close()

    def _policy(self) -> Policy:
        return Policy(self.folder, self.dtype, self.ranks, self.distributed, self.settings.flavor)

    def _checked(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[TrainSequence]:
        """All sequences, none longer than the model's window or with tokens unknown to it."""
        sequences = [sequence for batch in micro_batches for sequence in batch]
        check_sequences(sequences, window=self.policy.window, vocabulary=self.policy.vocabulary)
        return sequences

    def _passes(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[int]]:
        """Indices of the sequences of each forward pass of this rank.

        A pipeline is handed two passes for each of its ranks or more, to keep all of them busy.
        """
        pipeline = self.ranks.degrees.pipeline
        each = 2 * pipeline if pipeline > 1 else 1
        together = units(micro_batches)
        sequences = [sequence for batch in micro_batches for sequence in batch]
        shares = share(
            [[sum(len(sequences[i].tokens) for i in unit) for unit in batch] for batch in together],
            self.ranks.degrees.data * each,
            self.settings.max_tokens_per_micro_batch,
        )
        every = [unit for batch in together for unit in batch]
        first = self.ranks.data_rank * each
        return [
            [index for number in numbers for index in every[number]]
            for passes in shares[first : first + each]
            for numbers in passes
        ]

    def _from_head(self, value: T) -> T:
        """What the rank with the head gives, on each rank of its pipeline. A collective."""
        gathered = self.ranks.gather((self.policy.has_head, value), "pp")
        return next(given for has_head, given in gathered if has_head)

    def _over_ranks(self, step: LossStep) -> tuple[float, float, dict[str, float]]:
        """Loss, count and mean metrics of all data-parallel ranks.

        Raises:
            RunFailed: a rank's loss is not finite.
        """
        losses, metrics = step.losses, step.metrics
        mine = self._from_head((losses.total, losses.count, losses.trouble(), *metrics.numbers()))
        total = count = 0.0
        merged = MetricSums()
        for rank_total, rank_count, trouble, sums, maxima in self.ranks.gather(mine, "batch"):
            if trouble:
                raise self._failed(trouble)
            total, count = total + rank_total, count + rank_count
            for name, (value, weight) in sums.items():
                merged.add(name, value, weight)
            for name, value in maxima.items():
                merged.add_max(name, value)
        return total, count, merged.means()

    def _update(self, total: float, count: float) -> float:
        """Turn the gradient of the summed loss into that of its mean, clip it and step.

        Returns:
            norm of the whole gradient before clipping.

        Raises:
            RunFailed: it is not finite; weights and optimizer are left as they were.
        """
        if not count:
            return 0.0
        parameters = [parameter for _, parameter in self.policy.named_parameters()]
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, 1 / count)
        norm = float(
            clip_grad_norm_(
                parameters,
                self.training.max_grad_norm or math.inf,
                foreach=True,
                pp_mesh=self.ranks.mesh("pp"),
                ep_enabled=self.ranks.degrees.expert > 1,
            )
        )
        if not math.isfinite(norm):
            raise self._failed(
                f"{self._first_bad_gradient()} (the loss is finite: {total / count:g})"
            )
        self.optimizers.step()
        return norm

    def _check_weights(self) -> None:
        """A collective, so that every rank stops before the next one.

        Raises:
            WeightsNotFinite: names the tensor.
        """
        if trouble := next(filter(None, self.ranks.from_all(self._bad_weight())), None):
            raise self._not_finite(trouble)

    def _bad_weight(self) -> str | None:
        parts = ((name, local(value)) for name, value in self.policy.named_parameters())
        return first_not_finite(parts)

    def _not_finite(self, trouble: str) -> WeightsNotFinite:
        return WeightsNotFinite(
            f"after step {self.steps_done}: {trouble}", component="trainer titan"
        )

    def _failed(self, trouble: str) -> RunFailed:
        if bad := self._bad_weight():  # of a step before, and the cause of this trouble
            return self._not_finite(bad)
        return RunFailed(
            f"step {self.steps_done + 1}: {trouble}; the weights are as they were before it",
            component="trainer titan",
        )

    def _first_bad_gradient(self) -> str:
        for name, parameter in self.policy.named_parameters():
            if parameter.grad is not None and not local(parameter.grad).isfinite().all():
                return f"the gradient of {name} is not finite"
        return "the norm of the gradient overflows"
