"""What a rank of trainer ``titan`` holds: arithmetic on degrees, types and the model's shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forge_core import BuildContext, Memory, ModelShape, Workload
from forge_tensors.activations import head_activations, layer_activations
from forge_tensors.optimizer_memory import state_bytes
from forge_titan.degrees import STAGES_PER_RANK, Degrees, check_degrees

if TYPE_CHECKING:
    from forge_titan.settings import TitanTrainerSettings


def trainer_memory(
    settings: TitanTrainerSettings, context: BuildContext, workload: Workload
) -> Memory:
    """What the fullest rank holds; ``context.world_size`` is the number of ranks."""
    limit = settings.max_tokens_per_micro_batch
    distributed, shape = context.distributed, workload.shape
    degrees = check_degrees(context)
    stored = 2 if context.model.dtype == "bfloat16" else 4
    computed = 2 if distributed.precision == "bf16" else stored
    schedule = distributed.pipeline_parallel_schedule
    whole, layers = _fullest_rank(shape, degrees, schedule)
    weights = math.ceil(whole / (degrees.shard * degrees.context)) * stored
    states = {"parameters": weights}
    if workload.trained:
        states |= {"gradients": weights, **state_bytes(context, weights)}
    if workload.reference:
        states["reference"] = weights
    tokens = _tokens(workload, degrees, limit)
    kept = layers if workload.trained else 0
    per_token = kept * layer_activations(shape, distributed.activation_checkpoint)
    if distributed.activation_checkpoint != "none" or not workload.trained:
        per_token += layer_activations(shape, "none")  # the one layer that is being computed
    in_flight = degrees.pipeline  # micro-batches that 1F1B's first rank has begun at once
    working = {
        "activations": tokens * in_flight * per_token * computed // degrees.tensor
        + head_activations(shape, tokens, cuda=settings.device != "cpu") // degrees.tensor,
    }
    if degrees.shard * degrees.context > 1 or computed != stored:
        # FSDP2 gathers one unit while the one before it is computed with.
        unit = max(shape.layer_parameters, shape.embedding_parameters)
        working["gathered weights"] = 2 * unit * computed // degrees.tensor
    offloaded = distributed.enable_cpu_offload
    return Memory(
        device=working if offloaded else states | working,
        host=states if offloaded else {},
        tokens=tokens,
        layout=str(degrees),
    )


def _tokens(workload: Workload, degrees: Degrees, limit: int | None) -> int:
    """Of one forward pass on one rank; the longest sequence is not split but by context."""
    share = max(math.ceil(workload.tokens / degrees.data), workload.longest)
    if limit is not None:
        share = min(share, max(limit, workload.longest))
    return math.ceil(share / degrees.context)


def _fullest_rank(shape: ModelShape, degrees: Degrees, schedule: str) -> tuple[int, int]:
    """Parameters and layers of the rank with most parameters, before data-parallel sharding.

    Tensor parallelism splits matrices and leaves norms whole. A pipeline's stages are those of
    TorchTitan: layers are dealt out evenly with the embeddings and the head counting as one each.
    """
    norms = shape.layer_norms
    layer = (shape.layer_parameters - norms) // degrees.tensor + norms
    embedding = shape.embedding_parameters // degrees.tensor
    if degrees.pipeline == 1:
        ends = embedding if shape.tied else 2 * embedding
        return shape.layers * layer + ends + shape.hidden, shape.layers
    stages = degrees.pipeline * STAGES_PER_RANK[schedule]
    dealt, extra = divmod(shape.layers + 2, stages)
    ranks: dict[int, tuple[int, int]] = {}
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        layers = dealt + (stage < extra) - first - last
        size = layers * layer + embedding * (first or last) + shape.hidden * last
        rank = stage % degrees.pipeline
        held, count = ranks.get(rank, (0, 0))
        ranks[rank] = held + size, count + layers
    return max(ranks.values())
