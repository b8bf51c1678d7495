"""Loss ``gspo``: ratio and clip of whole sequences (GSPO, arXiv:2507.18071, eq. 5 to 7)."""

from __future__ import annotations

import torch

from forge_core import LossBatch, LossOutput, ModelOutputs
from forge_grpo.losses.primitives import (
    bounded,
    clip_metrics,
    clipped_objective,
    ratio_maxima,
    sequence_means,
)
from forge_grpo.settings import GspoSettings


class Gspo:
    """Objective of a sequence: min(s A, clip(s) A), s = exp(mean over tokens of log ratio).

    A sequence's advantage is the mean over its tokens, which all carry the same one.
    """

    def __init__(self, settings: GspoSettings) -> None:
        self.settings = settings

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        log_ratio, counts = sequence_means(logprobs - batch.field("sampler_logprobs"), batch)
        advantages, _ = sequence_means(batch.field("advantages"), batch)
        trained = counts > 0
        ratio, advantages = bounded(log_ratio[trained]).exp(), advantages[trained]
        objective = clipped_objective(ratio, advantages, self.settings)
        return LossOutput(
            sum=-objective.sum(),
            count=float(ratio.numel()),
            metrics=clip_metrics(ratio, advantages, self.settings),
            maxima=ratio_maxima(ratio),
        )
