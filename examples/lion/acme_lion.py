"""Forge plugin: optimizer ``lion``, evolved sign momentum.

Chen et al., arXiv:2302.06675, algorithm 2.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from forge_core import OptimizerComponent, Settings, hookimpl

Beta = Annotated[float, Field(ge=0, lt=1)]


class LionSettings(Settings):
    """One momentum; the sign of a step is all that counts."""

    betas: tuple[Beta, Beta] = Field((0.9, 0.99), description="decay rates of step and momentum")
    weight_decay: float = Field(
        0.0, ge=0, description="decoupled decay of matrices: a step takes rate x decay off weights"
    )


def build_lion(settings):
    import torch

    class Lion(torch.optim.Optimizer):
        def __init__(self, groups, betas, weight_decay):
            super().__init__(groups, {"betas": betas, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                rate, (beta1, beta2) = group["lr"], group["betas"]
                for weight in group["params"]:
                    if weight.grad is None:
                        continue
                    state = self.state[weight]
                    if not state:
                        state["exp_avg"] = torch.zeros_like(weight)
                    momentum = state["exp_avg"]
                    direction = momentum.lerp(weight.grad, 1 - beta1).sign_()
                    weight.mul_(1 - rate * group["weight_decay"]).sub_(direction, alpha=rate)
                    momentum.lerp_(weight.grad, 1 - beta2)

    return partial(Lion, **dict(settings))


@hookimpl
def forge_optimizers():
    yield OptimizerComponent(
        name="lion",
        settings=LionSettings,
        build=build_lion,
        sharded=True,
        state_values=1,
        summary="sign of an interpolated momentum (Lion); half of AdamW's state",
    )
