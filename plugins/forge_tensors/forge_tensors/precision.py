"""What bfloat16 rounds away."""

from __future__ import annotations

from forge_core import BuildContext

HALF_STEP = 2.0**-9
"""A bfloat16 has 8 significant bits: the next number after w is at least w / 2**8 away, and an
update of less than half of that is rounded away."""

TYPICAL_WEIGHT = 0.02
"""Standard deviation that most language models are initialized with."""


def bfloat16_weights(context: BuildContext) -> list[str]:
    """The caution of a trainer whose only weights are those of ``model.dtype``.

    An update of an adaptive optimizer is about as large as the learning rate, whatever the
    gradient. In bfloat16 it is lost on every weight more than 1 / ``HALF_STEP`` = 512 times as
    large.

    Returns:
        a line if the weights are bfloat16 and the learning rate is so low that weights of typical
        size (three standard deviations) do not move; else nothing.
    """
    rate = context.training.learning_rate
    largest = rate / HALF_STEP
    if context.model.dtype != "bfloat16" or not 0 < largest < 3 * TYPICAL_WEIGHT:
        return []
    return [
        "model.dtype: bfloat16 keeps no float32 copy of the weights; with training.learning_rate "
        f"{rate:g} nearly every update of a weight larger than {largest:.2g} is rounded away, and "
        f"weights are typically about {TYPICAL_WEIGHT}. Use model.dtype=float32 with "
        "distributed.precision=bf16"
    ]
