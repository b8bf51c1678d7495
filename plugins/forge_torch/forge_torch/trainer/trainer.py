"""The trainer ``torch``: one process, any Hugging Face causal language model."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

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
from forge_models.folder import copy_tokenizer, load_model
from forge_tensors.batch import pack
from forge_tensors.causal_lm import CausalLM
from forge_tensors.finite import first_not_finite
from forge_tensors.float32 import set_float32
from forge_tensors.limits import check_sequences
from forge_tensors.loss_step import LossStep, LossSums
from forge_tensors.named_weights import named_weights
from forge_tensors.schedule import learning_rate
from forge_tensors.units import units
from forge_tensors.value_head import ValueHead
from forge_torch.checks import check_trainer
from forge_torch.settings import TorchTrainerSettings
from forge_torch.trainer.optimizer import load_moments, make_optimizer

STATE_FILE = "trainer_state.pt"
"""Optimizer moments, steps done, value head and random number generators, beside the weights."""

VALUES = OutputNeeds(values=True)


class TorchTrainer:
    """Implements ``forge_core.Trainer``.

    The model stays in evaluation mode (no dropout), so that the logprobs it trains on are those the
    sampler's model would give. A step in which the loss counts nothing (no trained token at all)
    changes neither weights nor optimizer; it still is a step of the schedule.

    Raises:
        UsageError: something is asked for that this trainer does not do.
        DataError: the model folder cannot be loaded.
    """

    def __init__(self, settings: TorchTrainerSettings, context: BuildContext) -> None:
        check_trainer(settings, context)
        learning_rate(context.training, 0)  # a schedule without an end is refused here
        if context.model.path is None:
            raise UsageError("model.path: trainer torch needs a model folder")
        self.settings = settings
        self.training = context.training
        self.folder = context.model.path
        self._trust_remote_code = context.model.trust_remote_code
        self.device = _device(settings.device)
        self.steps_done = 0
        self._mixed = context.distributed.precision == "bf16"
        self._loss: Loss | None = context.loss.build(context) if context.loss else None
        self._needs = context.loss.outputs if context.loss else OutputNeeds()
        self._transport: Transport | None = (
            context.transport.build(context) if context.transport else None
        )
        set_float32(context.distributed, getattr(torch, context.model.dtype), self.device)
        torch.manual_seed(context.seed)
        model = load_model(
            self.folder,
            context.model.dtype,
            self.device,
            trust_remote_code=self._trust_remote_code,
            allow_pickle=context.model.allow_pickle,
        )
        self.policy = CausalLM(model, packed=settings.packed)
        if settings.gradient_checkpointing:
            _checkpoint_layers(model)
        # None where positions have no end, as in state-space models.
        config = model.config.get_text_config()
        self._window: int | None = getattr(config, "max_position_embeddings", None)
        self.value_head: ValueHead | None = None
        if self._needs.values:
            self.value_head = ValueHead(config.hidden_size, self.device)
        self.optimizer = make_optimizer(self._named_parameters(), self.training)
        self.reference: CausalLM | None = None

    async def train_step(
        self, micro_batches: Sequence[Sequence[TrainSequence]], *, temperature: float = 1.0
    ) -> StepResult:
        if self._loss is None:
            raise UsageError("loss.use: trainer torch was built without a loss and cannot train")
        step = LossStep(self._loss, self.device, self._needs)
        tokens = trained_tokens = 0
        rate = learning_rate(self.training, self.steps_done)
        try:
            for sequences in self._split(micro_batches):
                batch = pack(sequences, self.device)
                with self._precision():
                    scores = self.policy.score(
                        batch,
                        temperature=temperature,
                        needs=self._needs,
                        terms=step.terms(batch.loss_batch),
                    )
                    if self.value_head is not None:
                        scores = self.value_head.scored(scores)
                objective = step.add(scores, batch.loss_batch)
                if objective.requires_grad:
                    torch.autograd.backward(objective)
                tokens += batch.tokens.numel()
                trained_tokens += batch.targets.numel()
            norm = self._update(step.losses, rate)
        finally:
            self.optimizer.zero_grad()
        self.steps_done += 1
        return StepResult(
            loss=step.losses.mean,
            grad_norm=norm,
            learning_rate=rate,
            tokens=tokens,
            trained_tokens=trained_tokens,
            metrics=step.metrics.means(),
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
        rows: list[FloatArray] = []
        for part in self._split([sequences]):
            batch = pack([TrainSequence(s.tokens, s.loss_mask) for s in part], self.device)
            with torch.no_grad(), self._precision():
                scores = model.score(batch, temperature=temperature)
            rows += batch.rows(scores.logprobs)
        return rows

    async def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        if self.value_head is None:
            raise UsageError("values were asked for, and the loss of trainer torch needs none")
        rows: list[FloatArray] = []
        for part in self._split([sequences]):
            batch = pack([TrainSequence(s.tokens, s.loss_mask) for s in part], self.device)
            with torch.no_grad(), self._precision():
                scores = self.value_head.scored(self.policy.score(batch, needs=VALUES))
            assert scores.values is not None
            rows += batch.rows(scores.values)
        return rows

    async def hold_reference(self) -> None:
        self.reference = copy.deepcopy(self.policy)
        self.reference.model.requires_grad_(False)

    async def publish(self, version: int) -> WeightManifest:
        if self._transport is None:
            raise UsageError("transport.use: trainer torch was built without a transport")
        self._check_weights()
        return await self._transport.publish(version, named_weights(self.policy.model).items())

    async def save(self, folder: Path) -> None:
        self._check_weights()
        self.policy.model.save_pretrained(folder)
        copy_tokenizer(self.folder, folder)
        state = {
            "steps_done": self.steps_done,
            "optimizer": self.optimizer.state_dict(),
            "value_head": self.value_head.state_dict() if self.value_head is not None else {},
            "cpu_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }
        torch.save(state, folder / STATE_FILE)

    async def load(self, folder: Path) -> None:
        saved = load_model(
            folder,
            self.policy.model.dtype,
            self.device,
            trust_remote_code=self._trust_remote_code,
        )
        self.policy.model.load_state_dict(saved.state_dict())
        state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        load_moments(self.optimizer, state["optimizer"])
        if self.value_head is not None:
            self.value_head.load_state_dict(state["value_head"])
        self.steps_done = state["steps_done"]
        torch.set_rng_state(state["cpu_rng"])
        if state["cuda_rng"] and self.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()

    def _update(self, losses: LossSums, rate: float) -> float:
        """Turn the gradient of the summed loss into that of its mean, clip it and step.

        Returns:
            norm of the whole gradient before clipping.

        Raises:
            RunFailed: something is not finite; weights and optimizer are left as they were.
        """
        gradients = [p.grad for _, p in self._named_parameters() if p.grad is not None]
        if trouble := losses.trouble():
            raise self._failed(trouble)
        if not losses.count or not gradients:
            return 0.0
        norms = torch._foreach_norm(gradients, dtype=torch.float32)
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) / losses.count
        if not math.isfinite(norm):
            raise self._failed(
                f"{self._first_bad_gradient()} (the loss is finite: {losses.mean:g})"
            )
        scale = 1 / losses.count
        limit = self.training.max_grad_norm
        if limit is not None and norm > limit:
            scale *= limit / norm
        torch._foreach_mul_(gradients, scale)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return norm

    def _named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """What is trained: the policy, and the value head if there is one."""
        yield from self.policy.model.named_parameters()
        if self.value_head is not None:
            yield from self.value_head.named_parameters(prefix="value_head")

    def _check_weights(self) -> None:
        """Raises WeightsNotFinite, which names the tensor."""
        if trouble := first_not_finite(self._named_parameters()):
            raise WeightsNotFinite(
                f"after step {self.steps_done}: {trouble}", component="trainer torch"
            )

    def _failed(self, trouble: str) -> RunFailed:
        self._check_weights()  # those of a step before may be the cause of this trouble
        return RunFailed(
            f"step {self.steps_done + 1}: {trouble}; the weights are as they were before it",
            component="trainer torch",
        )

    def _first_bad_gradient(self) -> str:
        for name, parameter in self._named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return f"the gradient of {name} is not finite"
        return "the norm of the gradient overflows"

    def _split(
        self, micro_batches: Sequence[Sequence[TrainSequence]]
    ) -> Iterator[list[TrainSequence]]:
        """Micro-batches of at most the tokens allowed, in order; empty ones are left out. What
        belongs together is not split, and a group that is larger goes alone.

        Raises:
            UsageError: a sequence is longer than the model's window.
            DataError: a token is not in the model's vocabulary.
        """
        every = [sequence for sequences in micro_batches for sequence in sequences]
        vocabulary = self.policy.model.get_input_embeddings().weight.shape[0]
        check_sequences(every, window=self._window, vocabulary=vocabulary)
        limit = self.settings.max_tokens_per_micro_batch or math.inf
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

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._mixed)


def _device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UsageError("trainer.device: cuda is asked for and this machine has none")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Turn gradient checkpointing on without turning dropout on.

    Transformers checkpoints a layer only in training mode, so the layers' own flag is set, and not
    that of what is in them.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
