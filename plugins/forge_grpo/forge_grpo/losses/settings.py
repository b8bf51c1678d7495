"""Settings of the policy-gradient losses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import Settings

Aggregate = Literal["tokens", "sequences"]


class ClipSettings(Settings):
    """Where an importance ratio stops counting."""

    clip_low: float = Field(0.2, ge=0, lt=1, description="ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0, description="ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(
        3.0,
        gt=1,
        description="largest ratio that counts where the advantage is negative and clip_high does "
        "not bound it (dual-clip PPO); null: no bound",
    )


class ReinforceSettings(Settings):
    """Plain policy gradient."""

    aggregate: Aggregate = Field(
        "tokens",
        description="what counts once: every token (DAPO), or every sequence (GRPO as published)",
    )


class GrpoLossSettings(ClipSettings, ReinforceSettings):
    """Clipped objective with optional KL penalty and entropy bonus."""

    kl_coef: float = Field(0.0, ge=0, description="weight of the KL penalty to the reference")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")


class GspoSettings(ClipSettings):
    """Sequence-level ratios; the clip range is much narrower than for tokens."""

    clip_low: float = Field(3e-4, ge=0, lt=1, description="ratio is clipped below 1 - clip_low")
    clip_high: float = Field(4e-4, ge=0, description="ratio is clipped above 1 + clip_high")


def grpo_needs(settings: GrpoLossSettings) -> set[str]:
    """Reference logprobs and entropy only where their terms count."""
    needs = {"advantages", "sampler_logprobs"}
    if settings.kl_coef > 0:
        needs.add("reference_logprobs")
    if settings.entropy_coef > 0:
        needs.add("entropy")
    return needs
