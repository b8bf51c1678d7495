"""Settings of tracker ``console``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import Settings


class ConsoleSettings(Settings):
    """How a run shows itself to a person."""

    view: Literal["auto", "live", "plain"] = Field(
        default="auto", description="auto: live on a terminal, plain lines in a pipe or log"
    )
    interval: float = Field(default=5.0, ge=0, description="seconds between plain lines of steps")
