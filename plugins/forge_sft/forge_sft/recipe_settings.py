"""Settings of recipe ``sft``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import Settings


class SftSettings(Settings):
    """What is trained on, and what happens to rows that are too long."""

    max_length: int | None = Field(
        None, ge=2, description="most tokens of a row, prompt and response; null: no limit"
    )
    overlong: Literal["drop", "truncate"] = Field(
        "drop", description="rows above max_length: leave out, or cut the response's end"
    )
