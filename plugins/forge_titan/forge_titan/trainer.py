"""The trainer ``titan``: TorchTitan's models, parallelism and optimizers under Forge's losses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from forge_core import BuildContext, FloatArray, TrainSequence, Transport, WeightManifest
from forge_models.folder import copy_tokenizer
from forge_tensors.batch import pack
from forge_tensors.float32 import set_float32
from forge_tensors.limits import check_sequences
from forge_tensors.logprobs import Scores
from forge_tensors.loss_step import LossStep
from forge_tensors.trainer_frame import StepNumbers, TrainerFrame
from forge_tensors.units import units
from forge_titan.batch_split import share
from forge_titan.hf_weights import hf_shards, hf_weights, load_weights, save_weights
from forge_titan.optimizer import Optimizers, make_schedulers
from forge_titan.policy import Policy, local
from forge_titan.ranks import Ranks
from forge_titan.settings import TitanTrainerSettings
from forge_titan.state import load_state, save_state
from forge_titan.torchtitan_api import clip_grad_norm_

T = TypeVar("T")

EMPTY = TrainSequence([0], [False])
"""What a rank with nothing to train on puts through the model, because the others wait for it."""


class TitanTrainer(TrainerFrame[Policy]):
    """Implements ``forge_core.Trainer``, on one rank or on one of many.

    Raises:
        UsageError: something is asked for that this trainer does not do.
        DataError: the model folder cannot be loaded, or TorchTitan has no such model.
    """

    name = "titan"

    def __init__(self, settings: TitanTrainerSettings, context: BuildContext) -> None:
        super().__init__(context)
        self.settings = settings
        self.distributed = context.distributed
        self.dtype: torch.dtype = getattr(torch, context.model.dtype)
        self.ranks = Ranks(context, settings.device)
        self.device = self.ranks.device
        try:
            set_float32(self.distributed, self.dtype, self.device)
            self.policy = self._policy()
            self.optimizers: Any = Optimizers(self.policy.parts, context)
            self.schedulers: Any = make_schedulers(self.optimizers, self.learning_rate)
        except BaseException:
            self.ranks.close()
            raise

    @property
    def steps_done(self) -> int:
        return int(self.schedulers.schedulers[0].last_epoch)

    @property
    def rate(self) -> float:
        return float(self.schedulers.schedulers[0].get_last_lr()[0])

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return self.policy.named_parameters()

    def check_sequences(self, sequences: Sequence[TrainSequence]) -> None:
        check_sequences(sequences, window=self.policy.window, vocabulary=self.policy.vocabulary)

    def accumulate(
        self, step: LossStep, micro_batches: Sequence[Sequence[TrainSequence]], temperature: float
    ) -> None:
        sequences = [sequence for batch in micro_batches for sequence in batch]
        passes = self._passes(micro_batches)
        if self.ranks.world_size == 1:  # no other rank waits for an empty pass
            passes = [p for p in passes if any(sequences[i].loss_mask.any() for i in p)]
        batches = [pack([sequences[i] for i in p] or [EMPTY], self.device) for p in passes]

        def read(index: int, scores: Scores) -> torch.Tensor:
            if not passes[index]:
                return scores.logprobs.sum()
            return step.add(scores, batches[index].loss_batch)

        self.policy.run(
            batches,
            read,
            train=True,
            temperature=temperature,
            needs=self.needs,
            terms=[
                step.terms(batch.loss_batch) if mine else None
                for mine, batch in zip(passes, batches, strict=True)
            ],
        )

    def score(
        self, policy: Policy, sequences: Sequence[TrainSequence], temperature: float
    ) -> list[FloatArray]:
        passes = self._passes([sequences])
        batches = [pack([sequences[i] for i in p] or [EMPTY], self.device) for p in passes]
        found: dict[int, FloatArray] = {}

        def read(index: int, scores: Scores) -> torch.Tensor:
            rows = batches[index].rows(scores.logprobs)
            found.update(zip(passes[index], rows, strict=False))
            return scores.logprobs

        policy.run(batches, read, train=False, temperature=temperature)
        if batches:
            policy.release()
        merged: dict[int, FloatArray] = {}
        for part in self.ranks.gather(self._from_head(found), "batch"):
            merged |= part
        return [merged[index] for index in range(len(sequences))]

    def average_gradients(self, count: float) -> float | None:
        parameters = [parameter for _, parameter in self.named_parameters()]
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, 1 / count)
        return float(
            clip_grad_norm_(
                parameters,
                self.training.max_grad_norm or math.inf,
                foreach=True,
                pp_mesh=self.ranks.mesh("pp"),
                ep_enabled=self.ranks.degrees.expert > 1,
            )
        )

    def apply_gradients(self, rate: float) -> None:
        self.optimizers.step()

    def zero_gradients(self) -> None:
        self.optimizers.zero_grad()

    def finish_step(self) -> None:
        with warnings.catch_warnings():
            # A step that counted nothing moves the schedule and not the optimizer.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedulers.step()

    def of_all_ranks(self, value: T) -> Sequence[T]:
        return self.ranks.from_all(value)

    def over_batch(self, numbers: StepNumbers) -> Sequence[StepNumbers]:
        return self.ranks.gather(self._from_head(numbers), "batch")

    async def hold_reference(self) -> None:
        if self.reference is None:
            self.reference = self._policy()
            for _, parameter in self.reference.named_parameters():
                parameter.requires_grad_(False)
        self.reference.copy_from(self.policy)

    async def send(self, transport: Transport, version: int) -> WeightManifest:
        manifest: WeightManifest | None = None
        if getattr(type(transport), "sharded", False):
            manifest = await transport.publish(version, hf_shards(self.policy))
        elif self.ranks.rank == 0:
            manifest = await transport.publish(version, hf_weights(self.policy))
        else:
            for _ in hf_weights(self.policy):
                pass  # gathered with the others, for rank 0
        published = self.ranks.from_first(manifest)
        assert published is not None
        return published

    async def save(self, folder: Path) -> None:
        self.check_weights()
        save_weights(self.policy, self.folder, folder)
        if self.ranks.rank == 0:
            copy_tokenizer(self.folder, folder)
        save_state(self.optimizers, self.schedulers, self.ranks, folder)

    async def load(self, folder: Path) -> None:
        load_weights(self.policy, folder)
        load_state(self.optimizers, self.schedulers, self.ranks, folder)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.ranks.close()

    def _policy(self) -> Policy:
        return Policy(self.folder, self.dtype, self.ranks, self.distributed, self.settings.flavor)

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
