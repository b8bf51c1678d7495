"""Settings of torch's optimizers, and of schedules. Imports nothing heavy.

Names and meanings are torch's (https://pytorch.org/docs/stable/optim.html). The learning rate
is ``training.learning_rate``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from forge_core import Settings

Beta = Annotated[float, Field(ge=0, lt=1)]


class DecaySettings(Settings):
    """What all of them have."""

    weight_decay: float = Field(0.0, ge=0, description="L2 penalty on matrices, added to gradients")


class AdamSettings(DecaySettings):
    """Adam (arXiv:1412.6980)."""

    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="decay rates of the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    amsgrad: bool = Field(False, description="divide by the largest second moment so far")


class AdamWSettings(AdamSettings):
    """AdamW (arXiv:1711.05101)."""

    weight_decay: float = Field(
        0.0, ge=0, description="decoupled decay of matrices: a step takes rate x decay off weights"
    )


class MomentsSettings(DecaySettings):
    """Relatives of Adam."""

    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="decay rates of the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the divisor")


class SgdSettings(DecaySettings):
    """Gradient descent."""

    momentum: Beta = Field(0.0, description="part of the last step that is made again")
    nesterov: bool = Field(False, description="look ahead by the momentum")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdSettings:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: needs a momentum above 0")
        return self


class AdafactorSettings(DecaySettings):
    """Adafactor (arXiv:1804.04235), with the learning rate of the config as its bound."""

    beta2_decay: float = Field(-0.8, le=0, description="exponent of the second moment's decay rate")
    d: float = Field(1.0, ge=1, description="updates of a larger root mean square are scaled down")


class AdagradSettings(DecaySettings):
    """Adagrad (JMLR 12, 2011)."""

    lr_decay: float = Field(0.0, ge=0, description="decay of the learning rate with the steps")
    eps: float = Field(1e-10, gt=0, description="added to the root of the sum of squares")


class RmspropSettings(DecaySettings):
    """RMSprop (Hinton's lecture 6)."""

    alpha: Beta = Field(0.99, description="decay rate of the mean of squares")
    eps: float = Field(1e-8, gt=0, description="added to the root of the mean of squares")
    momentum: Beta = Field(0.0, description="part of the last step that is made again")
    centered: bool = Field(False, description="divide by the deviation from the mean gradient")


class AdadeltaSettings(DecaySettings):
    """Adadelta (arXiv:1212.5701)."""

    rho: Beta = Field(0.9, description="decay rate of the means of squares")
    eps: float = Field(1e-6, gt=0, description="added to the means of squares")


class FloorSettings(Settings):
    """Schedules that go down."""

    floor: float = Field(
        0.0, ge=0, le=1, description="where it ends, as a fraction of training.learning_rate"
    )


class WsdSettings(FloorSettings):
    """Warmup, stable, decay (arXiv:2404.06395)."""

    decay: float = Field(
        0.2, gt=0, le=1, description="fraction of the steps after warmup in which it goes down"
    )


class InverseSqrtSettings(Settings):
    """The root that the Transformer was trained with (arXiv:1706.03762)."""

    timescale: int = Field(
        1000, ge=1, description="steps after warmup at which it is 1 / sqrt(2) of the peak"
    )
