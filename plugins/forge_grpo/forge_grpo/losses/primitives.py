"""The pieces policy-gradient losses are made of. N trained tokens in S sequences."""

from __future__ import annotations

import torch

from forge_core.tensors.batch import LossBatch, LossOutput
from forge_grpo.losses.settings import Aggregate


def sequence_means(values: torch.Tensor, batch: LossBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of a per-token value over each sequence's trained tokens.

    Returns:
        means [S], 0 where a sequence has no trained token, and token counts [S].
    """
    zeros = values.new_zeros(batch.num_sequences)
    sums = zeros.index_add(0, batch.sequence, values)
    counts = zeros.index_add(0, batch.sequence, torch.ones_like(values).detach())
    return sums / counts.clamp(min=1), counts


def aggregate(
    values: torch.Tensor, batch: LossBatch, how: Aggregate
) -> tuple[torch.Tensor, float | torch.Tensor]:
    """Sum and count of a per-token objective. [N] -> scalars.

    ``tokens``: every token counts once (DAPO, arXiv:2503.14476, eq. 8). ``sequences``: the mean
    over a sequence's tokens counts once (GRPO, arXiv:2402.03300, eq. 3); empty ones do not.
    """
    if how == "tokens":
        return values.sum(), float(values.numel())
    means, counts = sequence_means(values, batch)
    return means.sum(), (counts > 0).sum()


def clipped_objective(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A): PPO (arXiv:1707.06347) eq. 7. Elementwise."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratio * advantages, clipped * advantages)


def clip_metrics(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> dict[str, tuple[torch.Tensor | float, torch.Tensor | float]]:
    """How often the clip holds the objective back, and the mean ratio, as sums and counts."""
    ratio = ratio.detach()
    held = ((ratio > 1 + clip_high) & (advantages > 0)) | (
        (ratio < 1 - clip_low) & (advantages < 0)
    )
    count = float(ratio.numel())
    return {"clip_fraction": (held.sum(), count), "ratio": (ratio.sum(), count)}


def kl_k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Unbiased, never negative estimate of KL(policy || reference) at each sampled token. [N]

    exp(d) - d - 1 with d = reference - policy: the k3 estimator (Schulman, "Approximating KL
    divergence"), GRPO (arXiv:2402.03300) eq. 4.
    """
    difference = reference - logprobs
    # expm1, because exp(d) - 1 rounds to noise of either sign where the two policies nearly agree.
    return difference.expm1() - difference


def output(
    objective: torch.Tensor,
    batch: LossBatch,
    how: Aggregate,
    metrics: dict[str, tuple[torch.Tensor | float, torch.Tensor | float]],
) -> LossOutput:
    """The loss that maximizes a per-token objective. [N]"""
    total, count = aggregate(-objective, batch, how)
    return LossOutput(sum=total, count=count, metrics=metrics)
