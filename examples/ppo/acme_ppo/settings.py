"""Settings of recipe ``ppo`` and its critic."""

from __future__ import annotations

from pydantic import Field

from forge_core import Settings


class CriticSettings(Settings):
    """Of the critic, which is AdamW's alone."""

    learning_rate: float = Field(1e-3, gt=0, description="of the critic, constant")


class PpoSettings(Settings):
    """How a rollout is trained, and how far rewards reach back."""

    mini_batches: int = Field(2, ge=1, description="parts that a rollout is trained in")
    epochs: int = Field(2, ge=1, description="times that each of them is trained")
    discount: float = Field(1.0, ge=0, le=1, description="gamma, for each token")
    trace: float = Field(0.95, ge=0, le=1, description="lambda of the advantages")
    critic: CriticSettings = Field(default_factory=CriticSettings, description="its settings")
