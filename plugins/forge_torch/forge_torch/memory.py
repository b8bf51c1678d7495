"""What a trainer's process holds. Imports nothing heavy."""

from __future__ import annotations

from forge_core import BuildContext, Checkpointing, Memory, Workload
from forge_tensors.activations import head_activations, layer_activations
from forge_tensors.optimizer_memory import state_bytes
from forge_torch.settings import TorchTrainerSettings


def trainer_memory(
    settings: TorchTrainerSettings, context: BuildContext, workload: Workload
) -> Memory:
    """What training holds in one process, or answering with logprobs alone."""
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
        **state_bytes(context, weights),
        "activations": tokens * per_token * element
        + head_activations(shape, tokens, cuda=settings.device != "cpu"),
    }
    if mixed:
        device["bfloat16 weights"] = shape.parameters * 2
    if workload.reference:
        device["reference"] = weights
    return Memory(device=device, tokens=tokens)
