"""The trainer ``torch``: one process, any Hugging Face causal language model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from forge_core import (
    BuildContext,
    FloatArray,
    OutputNeeds,
    TrainSequence,
    Transport,
    UsageError,
    WeightManifest,
)
from forge_models.folder import copy_tokenizer, load_model
from forge_tensors.batch import PackedBatch, pack
from forge_tensors.causal_lm import CausalLM
from forge_tensors.float32 import set_float32
from forge_tensors.limits import check_sequences
from forge_tensors.logprobs import NOTHING, Scores, Terms
from forge_tensors.named_weights import named_weights
from forge_tensors.one_process import OneProcessTrainer
from forge_tensors.optimizer import check_kind, kind, load_state, make_optimizer
from forge_tensors.value_head import ValueHead
from forge_torch.checks import check_trainer
from forge_torch.settings import TorchTrainerSettings

STATE_FILE = "trainer_state.pt"
"""Optimizer state, steps done, value head and random number generators, beside the weights."""

VALUES = OutputNeeds(values=True)


class TorchTrainer(OneProcessTrainer[CausalLM]):
    """Implements ``forge_core.Trainer``.

    The model stays in evaluation mode (no dropout), so that the logprobs it trains on are those the
    sampler's model would give.

    Raises:
        UsageError: something is asked for that this trainer does not do.
        DataError: the model folder cannot be loaded.
    """

    name = "torch"

    def __init__(self, settings: TorchTrainerSettings, context: BuildContext) -> None:
        check_trainer(settings, context)
        super().__init__(context)
        self.max_tokens = settings.max_tokens_per_micro_batch
        self._trust_remote_code = context.model.trust_remote_code
        self.device = _device(settings.device)
        self._mixed = context.distributed.precision == "bf16"
        set_float32(context.distributed, getattr(torch, context.model.dtype), self.device)
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
        if self.needs.values:
            self.value_head = ValueHead(config.hidden_size, self.device)
        self.optimizer = make_optimizer(
            context, self.named_parameters(), rate=self.training.learning_rate
        )

    def run(
        self,
        policy: CausalLM,
        batch: PackedBatch,
        *,
        temperature: float,
        needs: OutputNeeds = NOTHING,
        terms: Terms | None = None,
    ) -> Scores:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._mixed):
            scores = policy.score(batch, temperature=temperature, needs=needs, terms=terms)
        if needs.values and self.value_head is not None:
            scores = self.value_head.scored(scores)
        return scores

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield from self.policy.model.named_parameters()
        if self.value_head is not None:
            yield from self.value_head.named_parameters(prefix="value_head")

    def check_sequences(self, sequences: Sequence[TrainSequence]) -> None:
        vocabulary = self.policy.model.get_input_embeddings().weight.shape[0]
        check_sequences(sequences, window=self._window, vocabulary=vocabulary)

    async def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        if self.value_head is None:
            raise UsageError("values were asked for, and the loss of trainer torch needs none")
        self.check_sequences(sequences)
        bare = [TrainSequence(each.tokens, each.loss_mask) for each in sequences]
        rows: list[FloatArray] = []
        for part in self.split([bare]):
            batch = pack(part, self.device)
            with torch.no_grad():
                scores = self.run(self.policy, batch, temperature=1.0, needs=VALUES)
            assert scores.values is not None
            rows += batch.rows(scores.values)
        return rows

    async def hold_reference(self) -> None:
        self.reference = copy.deepcopy(self.policy)
        self.reference.model.requires_grad_(False)

    async def send(self, transport: Transport, version: int) -> WeightManifest:
        return await transport.publish(version, named_weights(self.policy.model).items())

    async def save(self, folder: Path) -> None:
        self.check_weights()
        self.policy.model.save_pretrained(folder)
        copy_tokenizer(self.folder, folder)
        state = {
            "steps_done": self.steps_done,
            "optimizer": self.optimizer.state_dict(),
            "optimizer_kind": kind(self.optimizer),
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
        check_kind(self.optimizer, state["optimizer_kind"])
        load_state(self.optimizer, state["optimizer"])
        if self.value_head is not None:
            self.value_head.load_state_dict(state["value_head"])
        self.steps_done = state["steps_done"]
        torch.set_rng_state(state["cpu_rng"])
        if state["cuda_rng"] and self.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["cuda_rng"])


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
