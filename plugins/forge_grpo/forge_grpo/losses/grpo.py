"""Loss ``grpo``: clipped importance ratio times group-relative advantage.

GRPO (DeepSeekMath, arXiv:2402.03300, eq. 3 and 4) over PPO's clip (arXiv:1707.06347, eq. 7);
``clip_high`` above ``clip_low`` and ``aggregate: tokens`` give DAPO (arXiv:2503.14476, eq. 8).
``dual_clip`` bounds the ratio where the advantage is negative (dual-clip PPO, arXiv:1912.09729);
GRPO as published has no such bound.

Deviation: the old policy's logprobs are the sampler's, as reported with each token; GRPO recomputes
them with the trainer. The difference between the two is measured on every step (``mismatch/...``).
"""

from __future__ import annotations

import torch

from forge_core import LossBatch, LossOutput, ModelOutputs
from forge_grpo.losses.primitives import (
    bounded,
    clip_metrics,
    clipped_objective,
    kl_k3,
    output,
    ratio_maxima,
)
from forge_grpo.settings import GrpoLossSettings


class Grpo:
    """Objective of a token: min(r A, clip(r) A) - kl_coef KL + entropy_coef H."""

    def __init__(self, settings: GrpoLossSettings) -> None:
        self.settings = settings

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        settings = self.settings
        advantages = batch.field("advantages")
        ratio = bounded(logprobs - batch.field("sampler_logprobs")).exp()
        objective = clipped_objective(ratio, advantages, settings)
        metrics = clip_metrics(ratio, advantages, settings)
        count = float(logprobs.numel())
        if settings.kl_coef > 0:
            kl = kl_k3(logprobs, batch.field("reference_logprobs"))
            objective = objective - settings.kl_coef * kl
            metrics["kl"] = (kl.detach().sum(), count)
        if settings.entropy_coef > 0:
            entropy = outputs.entropy
            objective = objective + settings.entropy_coef * entropy
            metrics["entropy"] = (entropy.detach().sum(), count)
        return output(objective, batch, settings.aggregate, metrics, ratio_maxima(ratio))
