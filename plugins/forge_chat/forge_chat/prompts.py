"""Prompts as people write them down: arguments, lines of text, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_core import DataError, Message, Prompt
from forge_models.prompts import encode_prompt
from forge_run.data.messages import parse_message, parse_tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """A prompt and where it stands, such as ``prompts.txt:3``, for errors."""

    prompt: Prompt
    where: str
    tools: tuple[Mapping[str, Any], ...] = ()


def from_arguments(texts: Sequence[str]) -> list[GivenPrompt]:
    """One prompt an argument."""
    return [GivenPrompt(text, f"prompt {number}") for number, text in enumerate(texts, start=1)]


def from_file(path: Path) -> list[GivenPrompt]:
    """One prompt a line; blank lines are left out.

    Of ``*.jsonl`` each line is JSON: text, or an object with ``prompt`` (text) or ``messages`` (a
    chat) and ``tools``.

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
            prompts.append(_from_json(text, where) if is_json else GivenPrompt(text, where))
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
        return encode_prompt(prompt, tokenizer, given.tools)
    except DataError as error:
        raise DataError(f"{given.where}: {error}") from error


def _from_json(line: str, where: str) -> GivenPrompt:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if isinstance(row, str):
        return GivenPrompt(row, where)
    tools: tuple[Mapping[str, Any], ...] = ()
    if isinstance(row, dict) and row.get("tools"):
        tools = parse_tools(row["tools"], f"{where}: 'tools'")
    if isinstance(row, dict) and isinstance(row.get("messages"), list) and row["messages"]:
        # Whether a message is learned is nothing to a prompt.
        messages = tuple(
            parse_message(item, f"{where}: messages[{position}]", ignore=("weight",))
            for position, item in enumerate(row["messages"])
        )
        return GivenPrompt(messages, where, tools)
    if isinstance(row, dict) and isinstance(row.get("prompt"), str):
        return GivenPrompt(str(row["prompt"]), where, tools)
    raise DataError(
        f'{where}: needs text, or an object with "prompt" (text) or "messages" (a chat)'
    )
