"""Prompts as people write them down: arguments, lines of text, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from forge_core.errors import DataError
from forge_core.models.prompts import encode_prompt
from forge_core.types import Message, Prompt, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """A prompt and where it stands, such as ``prompts.txt:3``, for errors."""

    prompt: Prompt
    where: str


def from_arguments(texts: Sequence[str]) -> list[GivenPrompt]:
    """One prompt an argument."""
    return [GivenPrompt(text, f"prompt {number}") for number, text in enumerate(texts, start=1)]


def from_file(path: Path) -> list[GivenPrompt]:
    """One prompt a line; blank lines are left out.

    Of ``*.jsonl`` each line is JSON: text, or an object with ``prompt`` (text) or ``messages`` (a
    chat).

    Raises:
        DataError: the file cannot be read, holds no prompt, or a line is wrong (names the line).
    """
    try:
        with path.open(encoding="utf-8") as file:
            return from_lines(file, str(path), is_json=path.suffix == ".jsonl")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DataError(f"{path}: {cause}") from error


def from_lines(lines: Iterable[str], name: str, *, is_json: bool = False) -> list[GivenPrompt]:
    """One prompt a line, as in ``from_file``.

    Raises:
        DataError: no line holds a prompt, or one is wrong (names the line).
    """
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name}:{number}"
            text = line.rstrip("\r\n")
            prompts.append(GivenPrompt(_from_json(text, where) if is_json else text, where))
    if not prompts:
        raise DataError(f"{name}: holds no prompt")
    return prompts


def encode(given: GivenPrompt, tokenizer: PreTrainedTokenizerBase, *, raw: bool) -> list[int]:
    """Token ids of a prompt. Text becomes a user's message where the model has a chat template,
    unless ``raw``.

    Raises:
        DataError: it cannot be tokenized; says where it stands.
    """
    prompt = given.prompt
    if isinstance(prompt, str) and tokenizer.chat_template and not raw:
        prompt = (Message("user", prompt),)
    try:
        return encode_prompt(prompt, tokenizer)
    except DataError as error:
        raise DataError(f"{given.where}: {error}") from error


def _from_json(line: str, where: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if isinstance(row, str):
        return row
    if isinstance(row, dict) and isinstance(row.get("messages"), list) and row["messages"]:
        return tuple(_message(item, where) for item in row["messages"])
    if isinstance(row, dict) and isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    raise DataError(
        f'{where}: needs text, or an object with "prompt" (text) or "messages" (a chat)'
    )


def _message(item: object, where: str) -> Message:
    roles = get_args(Role)
    if (
        isinstance(item, dict)
        and item.get("role") in roles
        and isinstance(item.get("content"), str)
    ):
        return Message(item["role"], item["content"])
    raise DataError(
        f"{where}: each of messages needs a role ({', '.join(roles)}) and a content that is text"
    )
