"""Settings of the recipe, the loss and the dataset."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forge_core import InputPath, Settings


class SftSettings(Settings):
    """What is trained on, and what happens to rows that are too long."""

    max_length: int | None = Field(
        None, ge=2, description="most tokens of a row, prompt and response; null: no limit"
    )
    overlong: Literal["drop", "truncate"] = Field(
        "drop", description="rows above max_length: leave out, or cut the response's end"
    )


class CrossEntropySettings(Settings):
    """Nothing to set."""


class JsonlSettings(Settings):
    """Where the lines are and what their fields are called."""

    path: InputPath = Field(description="file with one JSON object a line")
    prompt: str = Field("prompt", description="field with the prompt")
    response: str = Field("response", description="field with the text to imitate; may be missing")
    answer: str = Field("answer", description="field with the reference answer; may be missing")
    messages: str = Field(
        "messages",
        description="field with a chat, which counts before a prompt where a line has both; an "
        "assistant message at its end is the response",
    )
    tools: str = Field(
        "tools", description="field with JSON schemas of the functions that a chat may call"
    )
    ignore: tuple[str, ...] = Field(
        (),
        description="keys to leave out of messages, and fields of a row to keep as task metadata, "
        "that would be refused because they could mean something to the model",
    )
