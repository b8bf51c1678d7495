"""Loss ``cross_entropy``: negative log-likelihood of the response tokens."""

from __future__ import annotations

import torch

from forge_core import LossBatch, LossOutput, ModelOutputs


class CrossEntropy:
    """Sum over tokens, counted in tokens: long responses weigh as much as their tokens."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        return LossOutput(sum=-logprobs.sum(), count=float(logprobs.numel()))
