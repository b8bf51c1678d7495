"""TorchTitan's optimizer and scheduler containers, set up as the trainer ``torch`` does it."""

from __future__ import annotations

from typing import Any

from forge_core import TrainingSection
from forge_tensors.schedule import learning_rate
from forge_titan.torchtitan_api import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig


def make_optimizers(parts: list[Any], training: TrainingSection) -> Any:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101) with weight decay on matrices only."""

    def group(pattern: str, decay: float) -> Any:
        arguments = {"lr": 1.0, "betas": training.betas, "eps": 1e-8, "weight_decay": decay}
        return ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs=arguments)

    config = OptimizersContainer.Config(
        param_groups=[group(r"norm\.weight$", 0.0), group(r".*", training.weight_decay)],
        implementation="fused",
    )
    return config.build(model_parts=parts)


def make_schedulers(optimizers: Any, training: TrainingSection) -> Any:
    """The kernel's schedule; the optimizers' own rate is 1, so that the factor is the rate."""
    return LRSchedulersContainer(optimizers, lambda step: learning_rate(training, step))
