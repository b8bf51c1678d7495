"""A trainer of one process: micro-batches one after the other, one optimizer of torch's."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch

from forge_core import FloatArray, OutputNeeds, TrainSequence
from forge_tensors.batch import PackedBatch, pack
from forge_tensors.logprobs import NOTHING, Scores, Terms
from forge_tensors.loss_step import LossStep
from forge_tensors.trainer_frame import P, TrainerFrame
from forge_tensors.units import units


class OneProcessTrainer(TrainerFrame[P]):
    """Inherit it, and set ``device``, ``policy`` and ``optimizer`` in the constructor."""

    optimizer: torch.optim.Optimizer
    steps_done: int = 0

    max_tokens: int | None = None
    """Of one forward pass at most; a sequence or a group that is longer goes alone."""

    @abstractmethod
    def run(
        self,
        policy: P,
        batch: PackedBatch,
        *,
        temperature: float,
        needs: OutputNeeds = NOTHING,
        terms: Terms | None = None,
    ) -> Scores:
        """Put a batch through a policy.

        Args:
            policy: the trained one or the reference.
            batch: on the trainer's device.
            temperature: logits are divided by it.
            needs: outputs of the policy that the loss asks for.
            terms: what to make of the log-probabilities of the vocabulary; None: nothing.
        """

    @property
    def rate(self) -> float:
        return self.learning_rate(self.steps_done)

    def accumulate(
        self, step: LossStep, micro_batches: Sequence[Sequence[TrainSequence]], temperature: float
    ) -> None:
        for sequences in self.split(micro_batches):
            batch = pack(sequences, self.device)
            scores = self.run(
                self.policy,
                batch,
                temperature=temperature,
                needs=self.needs,
                terms=step.terms(batch.loss_batch),
            )
            objective = step.add(scores, batch.loss_batch)
            if objective.requires_grad:
                torch.autograd.backward(objective)

    def score(
        self, policy: P, sequences: Sequence[TrainSequence], temperature: float
    ) -> list[FloatArray]:
        rows: list[FloatArray] = []
        for part in self.split([sequences]):
            batch = pack(part, self.device)
            with torch.no_grad():
                scores = self.run(policy, batch, temperature=temperature)
            rows += batch.rows(scores.logprobs)
        return rows

    def average_gradients(self, count: float) -> float | None:
        gradients = [p.grad for _, p in self.named_parameters() if p.grad is not None]
        if not gradients:
            return None
        norms = torch._foreach_norm(gradients, dtype=torch.float32)
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) / count
        if not math.isfinite(norm):
            return norm
        scale = 1 / count
        limit = self.training.max_grad_norm
        if limit is not None and norm > limit:
            scale *= limit / norm
        torch._foreach_mul_(gradients, scale)
        return norm

    def apply_gradients(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def zero_gradients(self) -> None:
        self.optimizer.zero_grad()

    def finish_step(self) -> None:
        self.steps_done += 1

    def split(
        self, micro_batches: Sequence[Sequence[TrainSequence]]
    ) -> Iterator[list[TrainSequence]]:
        """Micro-batches of at most ``max_tokens``, in order; empty ones are left out. What belongs
        together is not split."""
        every = [sequence for sequences in micro_batches for sequence in sequences]
        limit = self.max_tokens or math.inf
        for together in units(micro_batches):
            part: list[TrainSequence] = []
            used = 0
            for unit in together:
                length = sum(len(every[index].tokens) for index in unit)
                if part and used + length > limit:
                    yield part
                    part, used = [], 0
                part += [every[index] for index in unit]
                used += length
            if part:
                yield part
