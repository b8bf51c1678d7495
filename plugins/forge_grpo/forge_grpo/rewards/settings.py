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
    thinking_tag: str | None = Field(
        "think",
        pattern=r"^\w+$",
        description="name of the tag around the reasoning, which is not searched for the answer; "
        "null: search the whole completion",
    )
    answer_tag: str | None = Field(
        "answer",
        pattern=r"^\w+$",
        description="name of a tag around the answer; what stands outside does not count if there "
        "is one; null: no such tag",
    )


class ThinkingSettings(Settings):
    """Reward the form of a reasoned answer."""

    tag: str = Field("think", pattern=r"^\w+$", description="name of the tag around the reasoning")
