"""How the ranks of a trainer are shared out among TorchTitan's kinds of parallelism.

Everything here is arithmetic on the config, so that what cannot work is refused before a start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches

from forge_core import BuildContext, DistributedSection, ModelShape, UsageError
from forge_models.shape import model_shape

STAGES_PER_RANK = {"1F1B": 1, "GPipe": 1, "Interleaved1F1B": 2}
"""Schedule of ``torch.distributed.pipelining`` -> stages that TorchTitan gives each rank.

Those that were seen to work; ``ZBVZeroBubble`` never returned from a step.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Ranks in each dimension; all but ``expert`` multiply to the number of ranks."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def data(self) -> int:
        """Parts that a batch is split into."""
        return self.replicate * self.shard

    def __str__(self) -> str:
        named = {name: getattr(self, name) for name in self.__slots__}
        return " x ".join(f"{n} ({name})" for name, n in named.items() if n > 1) or "1 rank"


def resolve_degrees(distributed: DistributedSection, ranks: int) -> Degrees:
    """The degrees that a config asks for, with what is left over filled in.

    Args:
        distributed: the section.
        ranks: ``trainer.procs``.

    Raises:
        UsageError: they do not multiply to the ranks; shows the arithmetic.
    """
    degrees = {
        "replicate": distributed.data_parallel_replicate_degree,
        "shard": distributed.data_parallel_shard_degree,
        "tensor": distributed.tensor_parallel_degree,
        "pipeline": distributed.pipeline_parallel_degree,
        "context": distributed.context_parallel_degree,
    }
    if distributed.strategy is not None:
        left, one = -1, 1
        degrees["replicate"] = left if distributed.strategy == "ddp" else one
        degrees["shard"] = left if distributed.strategy == "fsdp" else one
    fixed = {name: degree for name, degree in degrees.items() if degree > 1}
    needed = math.prod(fixed.values())
    sum_ = " x ".join(f"{degree} ({name})" for name, degree in fixed.items()) or "1"
    rest = [name for name, degree in degrees.items() if degree == -1]
    if rest:
        if ranks % needed:
            raise UsageError(
                f"distributed: {sum_} = {needed} does not divide the {ranks} ranks of "
                f"trainer.procs, so that none are left for {rest[0]}"
            )
        degrees[rest[0]] = ranks // needed
    elif needed != ranks:
        hint = ""
        if distributed.strategy == "none":
            hint = "; distributed.strategy=fsdp shards over those that are left, ddp replicates"
        raise UsageError(
            f"distributed: {sum_} = {needed} {'rank' if needed == 1 else 'ranks'}, but "
            f"trainer.procs is {ranks}{hint}"
        )
    resolved = Degrees(**degrees, expert=distributed.expert_parallel_degree)
    _check_expert(resolved)
    return resolved


def check_degrees(context: BuildContext) -> Degrees:
    """The degrees of a trainer, after making sure that its model can be shared out so.

    Args:
        context: ``world_size`` is the number of ranks.

    Raises:
        UsageError: names the key, with the arithmetic.
    """
    distributed = context.distributed
    degrees = resolve_degrees(distributed, context.world_size)
    if degrees.pipeline > 1 and degrees.context > 1:
        raise UsageError(
            f"distributed.context_parallel_degree: {degrees.context} together with "
            f"pipeline_parallel_degree {degrees.pipeline} is not something trainer titan does"
        )
    schedule = distributed.pipeline_parallel_schedule
    if degrees.pipeline > 1:
        _check_schedule(schedule)
    elif schedule != DistributedSection.model_fields["pipeline_parallel_schedule"].default:
        raise UsageError(
            f"distributed.pipeline_parallel_schedule={schedule}: does nothing with "
            "distributed.pipeline_parallel_degree=1"
        )
    shape = model_shape(context.model)
    if shape is not None:
        _check_tensor(degrees, shape)
        _check_pipeline(degrees, schedule, shape)
        if degrees.expert > 1:
            raise UsageError(
                f"distributed.expert_parallel_degree: {degrees.expert}, but {shape.model_type} is "
                "a dense model without experts; leave it at 1"
            )
    return degrees


def _check_expert(degrees: Degrees) -> None:
    ranks = degrees.shard * degrees.context * degrees.tensor
    if ranks % degrees.expert:
        raise UsageError(
            f"distributed.expert_parallel_degree: experts borrow the ranks of shard, context and "
            f"tensor: {degrees.shard} x {degrees.context} x {degrees.tensor} = {ranks}, which "
            f"{degrees.expert} does not divide"
        )


def _check_schedule(name: str) -> None:
    if name not in STAGES_PER_RANK:
        known = {schedule.lower(): schedule for schedule in STAGES_PER_RANK}
        near = get_close_matches(name.lower(), known, n=1)
        raise UsageError(
            f"distributed.pipeline_parallel_schedule: no schedule {name!r}"
            f"{f'; did you mean {known[near[0]]}?' if near else ''} "
            f"(there are: {', '.join(STAGES_PER_RANK)})"
        )


def _check_tensor(degrees: Degrees, shape: ModelShape) -> None:
    for what, count in (("query heads", shape.heads), ("key and value heads", shape.kv_heads)):
        if count % degrees.tensor:
            raise UsageError(
                f"distributed.tensor_parallel_degree: {degrees.tensor} does not divide the "
                f"model's {count} {what}"
            )


def _check_pipeline(degrees: Degrees, schedule: str, shape: ModelShape) -> None:
    if degrees.pipeline == 1:
        return
    if degrees.context > 1:
        raise UsageError(
            f"distributed.context_parallel_degree: {degrees.context}, but trainer titan does not "
            "split sequences inside a pipeline; leave it or pipeline_parallel_degree at 1"
        )
    stages = degrees.pipeline * STAGES_PER_RANK[schedule]
    if stages > shape.layers:
        raise UsageError(
            f"distributed.pipeline_parallel_degree: {degrees.pipeline} ranks x "
            f"{STAGES_PER_RANK[schedule]} (stages of each under {schedule}) = {stages} stages, but "
            f"the model has {shape.layers} layers"
        )
    if shape.tied:
        raise UsageError(
            f"distributed.pipeline_parallel_degree: {degrees.pipeline}, but the model ties its "
            "embeddings to its head, which then would lie on different ranks; TorchTitan refuses "
            "that (tie_word_embeddings)"
        )
