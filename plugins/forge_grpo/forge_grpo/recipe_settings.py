"""Settings of recipe ``grpo``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import Settings


class GrpoSettings(Settings):
    """How episodes are grouped, and how rewards become advantages."""

    group_size: int = Field(8, ge=2, description="episodes sampled for each task")
    advantage_scale: Literal["std", "none"] = Field(
        "std",
        description="divide by the group's standard deviation (GRPO), or not (Dr. GRPO)",
    )
    zero_variance: Literal["drop", "keep"] = Field(
        "drop",
        description="groups whose rewards are all equal carry no signal: leave their tokens out of "
        "the step, or let them count in the loss's mean",
    )
    overlong_prompts: Literal["drop", "fail"] = Field(
        "drop",
        description="tasks whose prompt leaves no room in the window, or that the chat template "
        "refuses: leave out and take the next ones, or fail before the first step",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="most policy versions that a trained token lies behind: 0 samples and trains "
        "in turn, k samples the next k steps meanwhile",
    )
    optimizer_steps: int = Field(
        1,
        ge=1,
        description="optimizer steps for what is sampled at a time, each on its own part of it; so "
        "many times the episodes of a step are sampled from the same weights",
    )


def max_staleness(settings: GrpoSettings) -> int:
    """Optimizer steps that a trained token may lie behind."""
    return (settings.max_staleness + 1) * settings.optimizer_steps - 1
