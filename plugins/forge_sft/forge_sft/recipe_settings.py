"""Settings of recipe ``sft``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from forge_core import Settings


class SftSettings(Settings):
    """What is trained on, and what happens to rows that are too long."""

    section_defaults: ClassVar[Mapping[str, Any]] = {
        "loss": {"use": "cross_entropy"},
        "training": {"batch_size": 8},
    }

    max_length: int | None = Field(
        None, ge=2, description="most tokens of a row, prompt and response; null: no limit"
    )
    overlong: Literal["drop", "truncate"] = Field(
        "drop", description="rows above max_length: leave out, or cut the response's end"
    )
