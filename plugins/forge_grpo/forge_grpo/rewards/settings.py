"""Settings of the rewards."""

from __future__ import annotations

from pydantic import Field

from forge_core import Settings


class ExactMatchSettings(Settings):
    """Compare the completion with the answer, whole."""

    case_sensitive: bool = Field(True, description="upper and lower case differ")


class MathSettings(Settings):
    """Compare as mathematics."""

    precision: int = Field(6, ge=0, description="decimals to which numbers must agree")


class ThinkingSettings(Settings):
    """Reward the form of a reasoned answer."""

    tag: str = Field("think", pattern=r"^\w+$", description="name of the tag around the reasoning")
