"""The pieces policy-gradient losses are made of. N trained tokens in S sequences."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from forge_core import LossBatch, LossOutput
from forge_grpo.settings import Aggregate, ClipSettings

LARGEST_LOG_RATIO = 20.0
"""Nats. exp(20) = 4.9e8 is far outside every clip, and neither it nor a sum of it over a batch
overflows float32, as exp does above 88.7. verl holds log ratios at the same bound."""


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


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """A log ratio, held at ``LARGEST_LOG_RATIO`` from above. Elementwise.

    Without a bound ``exp`` overflows, and infinity times a gradient or an advantage of 0 is NaN.
    Small ratios need no bound: they go to 0. What is not finite becomes NaN rather than the bound,
    so that the trainer refuses the step: a sampled token has a finite logprob.
    """
    held = log_ratio.clamp(max=LARGEST_LOG_RATIO)
    return torch.where(log_ratio.isfinite(), held, torch.nan)


def clipped_objective(
    ratio: torch.Tensor, advantages: torch.Tensor, settings: ClipSettings
) -> torch.Tensor:
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A): PPO (arXiv:1707.06347) eq. 7. Elementwise.

    The minimum has no bound where A < 0 and the ratio is large. There the objective is at least
    ``dual_clip`` A, and has no gradient below (dual-clip PPO, Ye et al., arXiv:1912.09729).
    """
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    if settings.dual_clip is None:
        return objective
    floor = torch.maximum(objective, settings.dual_clip * advantages)
    return torch.where(advantages < 0, floor, objective)


def clip_metrics(
    ratio: torch.Tensor, advantages: torch.Tensor, settings: ClipSettings
) -> dict[str, tuple[torch.Tensor | float, torch.Tensor | float]]:
    """How often the clip leaves no gradient, and the mean ratio, as sums and counts."""
    ratio = ratio.detach()
    held = ((ratio > 1 + settings.clip_high) & (advantages > 0)) | (
        (ratio < 1 - settings.clip_low) & (advantages < 0)
    )
    if settings.dual_clip is not None:
        held |= (ratio > settings.dual_clip) & (advantages < 0)
    count = float(ratio.numel())
    return {"clip_fraction": (held.sum(), count), "ratio": (ratio.sum(), count)}


def ratio_maxima(ratio: torch.Tensor) -> dict[str, torch.Tensor]:
    """The largest ratio, for ``LossOutput.maxima``."""
    return {"ratio_max": ratio.detach().max()} if ratio.numel() else {}


def kl_k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Never negative estimate of KL(policy || reference) at each sampled token. [N]

    exp(d) - d - 1 with d = log reference - log policy: the k3 estimator (J. Schulman,
    "Approximating KL divergence", 2020), GRPO (arXiv:2402.03300) eq. 4.

    On tokens that the policy itself sampled, the mean of its *value* is KL(policy || reference).
    Its *gradient* as a loss is another: d/dw k3 = (1 - reference / policy) d/dw log policy, whose
    mean over the policy's tokens is -E_reference[d/dw log policy], the gradient of
    KL(reference || policy) (Tang and Munos, arXiv:2506.09477).
    """
    difference = bounded(reference - logprobs)
    # expm1, because exp(d) - 1 rounds to noise of either sign where the two policies nearly agree.
    return difference.expm1() - difference


def output(
    objective: torch.Tensor,
    batch: LossBatch,
    how: Aggregate,
    metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]],
    maxima: Mapping[str, torch.Tensor] | None = None,
) -> LossOutput:
    """The loss that maximizes a per-token objective. [N]"""
    total, count = aggregate(-objective, batch, how)
    return LossOutput(sum=total, count=count, metrics=metrics, maxima=maxima or {})
