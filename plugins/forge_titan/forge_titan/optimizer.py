"""TorchTitan's optimizer and scheduler containers around the optimizer that the config chose."""

from __future__ import annotations

from typing import Any

from forge_core import BuildContext
from forge_tensors.optimizer import make_optimizer
from forge_tensors.schedule import LearningRate
from forge_titan.torchtitan_api import LRSchedulersContainer, OptimizersContainer, canonical_fqn


class Optimizers(OptimizersContainer):  # type: ignore[misc]
    """One optimizer for each part of the model, made by ``training.optimizer``.

    TorchTitan's own container knows Adam and AdamW by name. Everything else of it is used: names of
    parameters in groups, from which its ``state_dict`` makes one that any number of ranks can load.
    """

    def __init__(self, parts: list[Any], context: BuildContext) -> None:
        self.model_parts = parts
        self.optimizers = [
            make_optimizer(
                context,
                ((canonical_fqn(name), weight) for name, weight in part.named_parameters()),
                rate=1.0,
            )
            for part in parts
        ]
        weights = [
            weight
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for weight in group["params"]
        ]
        self._validate_params(weights)
        self._post_init(weights)


def make_schedulers(optimizers: Any, rate: LearningRate) -> Any:
    """The kernel's schedule; the optimizers' own rate is 1, so that the factor is the rate."""
    return LRSchedulersContainer(optimizers, rate)
