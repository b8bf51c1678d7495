"""Loss ``reinforce``: plain policy gradient with the advantages given (Williams, 1992)."""

from __future__ import annotations

import torch

from forge_core import LossBatch, LossOutput, ModelOutputs
from forge_grpo.losses.primitives import output
from forge_grpo.settings import ReinforceSettings


class Reinforce:
    """Objective: A log pi(token). No correction for weights that have moved since sampling."""

    def __init__(self, settings: ReinforceSettings) -> None:
        self.settings = settings

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        objective = batch.field("advantages") * logprobs
        return output(objective, batch, self.settings.aggregate, {})
