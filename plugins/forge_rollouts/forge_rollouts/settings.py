"""Settings of the replay buffer."""

from __future__ import annotations

from pydantic import Field

from forge_core import Settings


class ReplayBufferSettings(Settings):
    """What the recipe asks of its buffer."""

    max_staleness: int = Field(ge=0, description="policy versions a token may lie behind")
