"""Settings of the components. Imports nothing heavy."""

from __future__ import annotations

from pydantic import Field

from forge_core import Settings


class JsonlSettings(Settings):
    """What is written to the run folder."""

    episodes: int = Field(
        default=4, ge=0, description="episodes written to episodes.jsonl in a step; 0: none"
    )
