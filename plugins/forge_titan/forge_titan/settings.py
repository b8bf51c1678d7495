"""Settings of the trainer ``titan``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import Settings


class TitanTrainerSettings(Settings):
    """Training of a Hugging Face model with TorchTitan; ``distributed`` says how it spreads."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the model is trained; auto: cuda if there is one"
    )
    flavor: str | None = Field(
        None,
        description="TorchTitan's name of the size that the model must have, such as 8B; null: any",
    )
    max_tokens_per_micro_batch: int | None = Field(
        None,
        ge=1,
        description="tokens in one forward pass of a rank at most (a longer sequence goes alone); "
        "splits the recipe's micro-batches further to save memory and changes no number. null: no "
        "bound",
    )
