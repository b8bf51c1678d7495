"""Settings of the trainer ``torch``, and the component. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import (
    BuildContext,
    Checkpointing,
    Location,
    Memory,
    Settings,
    TrainerComponent,
    UsageError,
    Workload,
)
from forge_local.devices import computes_on_cuda
from forge_tensors.activations import head_activations, layer_activations
from forge_tensors.precision import bfloat16_weights


class TorchTrainerSettings(Settings):
    """Training of a Hugging Face causal language model in one process."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the model is trained; auto: cuda if there is one"
    )
    packed: bool = Field(
        True,
        description="lay sequences end to end; false: pad them to one length. Both give the same "
        "numbers; a model that cannot be packed is padded anyway, with a warning",
    )
    max_tokens_per_micro_batch: int | None = Field(
        None,
        ge=1,
        description="tokens in one forward pass at most (a longer sequence goes alone); splits the "
        "recipe's micro-batches further to save memory and changes no number. null: no bound",
    )
    gradient_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass instead of keeping them"
    )


ONE_PROCESS = {
    "strategy": (None, "none"),
    "data_parallel_replicate_degree": (1,),
    "data_parallel_shard_degree": (-1, 1),
    "tensor_parallel_degree": (1,),
    "pipeline_parallel_degree": (1,),
    "pipeline_parallel_schedule": ("1F1B",),
    "context_parallel_degree": (1,),
    "expert_parallel_degree": (1,),
    "compile": (False,),
    "activation_checkpoint": ("none",),
    "enable_cpu_offload": (False,),
}
"""What this trainer can do of the ``distributed`` section."""


def check_trainer(settings: TorchTrainerSettings, context: BuildContext) -> None:
    """One process, and nothing of what is for several.

    Raises:
        UsageError: names the key.
    """
    if context.world_size > 1:
        raise UsageError(
            f"trainer.procs: trainer torch runs in one process, not {context.world_size}; "
            "trainer titan runs in several"
        )
    for key, possible in ONE_PROCESS.items():
        value = getattr(context.distributed, key)
        if value not in possible:
            instead = "; trainer titan does"
            shown = str(value).lower() if isinstance(value, bool) else value
            if key == "activation_checkpoint":
                instead = " (its own way is trainer.gradient_checkpointing=true)" + instead
            raise UsageError(
                f"distributed.{key}={shown}: trainer torch runs in one process and "
                f"does not do that{instead}"
            )


def trainer_memory(
    settings: TorchTrainerSettings, context: BuildContext, workload: Workload
) -> Memory:
    """What training with AdamW holds in one process, or answering with logprobs alone."""
    shape = workload.shape
    size = 2 if context.model.dtype == "bfloat16" else 4
    mixed = context.distributed.precision == "bf16" and size == 4
    weights = shape.parameters * size
    limit = settings.max_tokens_per_micro_batch or workload.tokens
    tokens = min(workload.tokens, max(limit, workload.longest))
    element = 2 if mixed else size
    if not workload.trained:
        layer = tokens * layer_activations(shape, "none") * element
        activations = layer + head_activations(shape, tokens, cuda=settings.device != "cpu")
        return Memory(device={"parameters": weights, "activations": activations}, tokens=tokens)
    checkpointing: Checkpointing = "full" if settings.gradient_checkpointing else "none"
    per_token = shape.layers * layer_activations(shape, checkpointing)
    if settings.gradient_checkpointing:
        per_token += layer_activations(shape, "none")  # the one layer that is computed again
    device = {
        "parameters": weights,
        "gradients": weights,
        "optimizer": 2 * weights,
        "activations": tokens * per_token * element
        + head_activations(shape, tokens, cuda=settings.device != "cpu"),
    }
    if mixed:
        device["bfloat16 weights"] = shape.parameters * 2
    if workload.reference:
        device["reference"] = weights
    return Memory(device=device, tokens=tokens)


def trainer_cautions(settings: TorchTrainerSettings, context: BuildContext) -> list[str]:
    """Weights and optimizer are kept in ``model.dtype``."""
    return bfloat16_weights(context)


def trainer_location(settings: TorchTrainerSettings) -> Location:
    """On the device that the settings say."""
    insists = settings.device == "cuda"
    cuda = computes_on_cuda(settings.device)
    return Location(cuda=cuda, cuda_key="device" if insists else "")


TRAINER = TrainerComponent(
    name="torch",
    settings=TorchTrainerSettings,
    build="forge_torch.trainer.trainer:TorchTrainer",
    check=check_trainer,
    cautions=trainer_cautions,
    memory=trainer_memory,
    location=trainer_location,
    summary="Hugging Face causal language models in one process, on CPU or CUDA",
    default=True,
)
