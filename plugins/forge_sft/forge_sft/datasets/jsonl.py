"""Dataset ``jsonl``: one JSON object a line, with a prompt and what should follow it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge_core import DataError, Message, Task
from forge_run.data.messages import parse_message, parse_tools
from forge_sft.settings import JsonlSettings

OF_OTHER_FORMATS = frozenset(
    {
        *("system", "history", "functions", "function_call", "chat_template_kwargs", "documents"),
        *("image", "images", "video", "videos", "audio", "audios"),
        *("weight", "completion"),
    }
)
"""Fields of a row that other formats show to the model or train with, and that this one does not
know. Left out without a word, they would make other training data of the same file."""


class Jsonl:
    """Every line is read and checked when the dataset is made, so that line 90,000 cannot fail a
    run hours later; what stays in memory is where each line begins.

    Raises:
        DataError: the file cannot be read, holds no row, or a line is wrong (names the line).
    """

    def __init__(self, settings: JsonlSettings) -> None:
        self.settings = settings
        self._offsets: list[tuple[int, int]] = []
        path, here = settings.path, Path.cwd()
        self._shown = path.relative_to(here) if path.is_relative_to(here) else path
        """The file as a person would type it here."""
        try:
            with settings.path.open("rb") as file:
                offset = 0
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        self._task(line, number)
                        self._offsets.append((offset, number))
                    offset += len(line)
        except OSError as error:
            raise DataError(f"dataset jsonl: {self._shown}: {error.strerror}") from error
        if not self._offsets:
            raise DataError(f"dataset jsonl: {self._shown}: holds no row")

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Task:
        offset, number = self._offsets[index]
        with self.settings.path.open("rb") as file:
            file.seek(offset)
            return self._task(file.readline(), number)

    def _task(self, line: bytes, number: int) -> Task:
        where = self._where(number)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: a JSON object is needed, not {type(row).__name__}")
        # What writes such files often fills in null where a field is missing.
        row = {name: value for name, value in row.items() if value is not None}
        is_chat = self.settings.messages in row
        return self._chat(row, number) if is_chat else self._plain(row, number)

    def _plain(self, row: dict[str, Any], number: int) -> Task:
        names, where = self.settings, self._where(number)
        prompt = _text(row, names.prompt, where)
        metadata = self._others(row, where, names.prompt, names.response, names.answer)
        if row.get(names.tools) and names.tools not in names.ignore:
            raise DataError(f"{where}: {names.tools!r} needs a chat in {names.messages!r}")
        if names.prompt == "instruction" and row.get("input") and "input" not in names.ignore:
            raise DataError(
                f"{where}: 'input' would be lost beside 'instruction'; join the two, or name it in "
                "dataset.ignore"
            )
        if names.response not in row and names.answer not in row:
            raise DataError(
                f"{where}: neither {names.response!r} nor {names.answer!r} "
                f"(it has: {', '.join(row)})"
            )
        return Task(
            id=self._id(number),
            prompt=prompt,
            response=_text(row, names.response, where) if names.response in row else None,
            answer=_text(row, names.answer, where) if names.answer in row else None,
            metadata=metadata,
        )

    def _chat(self, row: dict[str, Any], number: int) -> Task:
        names, where = self.settings, self._where(number)
        chat = row[names.messages]
        if not isinstance(chat, list) or not chat:
            raise DataError(f"{where}: {names.messages!r} is to be a list of messages")
        messages = [
            parse_message(message, f"{where}: {names.messages}[{position}]", ignore=names.ignore)
            for position, message in enumerate(chat)
        ]
        messages = _learned_last(messages, f"{where}: {names.messages}")
        response = messages.pop() if messages[-1].role == "assistant" else None
        answer = _text(row, names.answer, where) if names.answer in row else None
        if response is None and answer is None:
            raise DataError(
                f"{where}: {names.messages!r} has no assistant message at its end to imitate, and "
                f"there is no {names.answer!r}"
            )
        if not messages:
            raise DataError(f"{where}: {names.messages!r} has nothing before the response")
        known = [names.messages, names.answer]
        tools: tuple[Mapping[str, Any], ...] = ()
        if row.get(names.tools) and names.tools not in names.ignore:
            tools = parse_tools(row[names.tools], f"{where}: {names.tools!r}")
            known.append(names.tools)
        return Task(
            id=self._id(number),
            prompt=tuple(messages),
            # A message that is nothing but text is that text.
            response=response.content if response and not response.extra else response,
            answer=answer,
            metadata=self._others(row, where, *known),
            tools=tools,
        )

    def _others(self, row: dict[str, Any], where: str, *known: str) -> dict[str, Any]:
        """The fields that are left, for rewards and environments.

        Raises:
            DataError: one of them is for the model in other formats.
        """
        others = {key: value for key, value in row.items() if key not in known}
        for key in OF_OTHER_FORMATS & others.keys() - set(self.settings.ignore):
            if others[key] not in ("", [], {}):
                raise DataError(
                    f"{where}: {key!r} is not used, and other tools show it to the model or train "
                    f"with it; take it out, or keep it as metadata with dataset.ignore=[{key}]"
                )
        return others

    def _where(self, number: int) -> str:
        return f"{self._shown}:{number}"

    def _id(self, number: int) -> str:
        # Without the folder, so that seeds derived from it are the same on every machine.
        return f"{self.settings.path.name}:{number}"


def _learned_last(messages: list[Message], where: str) -> list[Message]:
    """The messages up to the one that is learned, without their weights.

    That is the last one, or where assistant messages at the end have ``weight: 0`` (as in OpenAI's
    format: not to be learned), the last one before them that has not.

    Raises:
        DataError: a weight is neither 0 nor 1, asks for a message that is not learned, or leaves
            nothing to learn; names the message.
    """
    weights = [message.extra.get("weight") for message in messages]
    if not any(weight is not None for weight in weights):
        return messages
    end = len(messages)
    if messages[-1].role == "assistant" and weights[-1] == 0:
        learnable = (
            i for i in reversed(range(end)) if messages[i].role == "assistant" and weights[i] != 0
        )
        end = next(learnable, -1) + 1
        if not end:
            raise DataError(
                f"{where}: every assistant message has weight 0, so there is nothing to learn"
            )
    for index, (message, weight) in enumerate(zip(messages, weights, strict=True)):
        if weight is None or weight == 0:
            continue
        if weight != 1:
            raise DataError(f"{where}[{index}]: weight is {weight!r}; 0 and 1 are allowed")
        if index != end - 1 or message.role != "assistant":
            raise DataError(
                f"{where}[{index}] has weight 1, but of a row only the last assistant message is "
                "learned; write a row for each, or leave weights out with dataset.ignore=[weight]"
            )
    return [
        replace(m, extra={key: value for key, value in m.extra.items() if key != "weight"})
        for m in messages[:end]
    ]


def _text(row: dict[str, Any], field: str, where: str) -> str:
    if field not in row:
        raise DataError(f"{where}: no field {field!r} (it has: {', '.join(row) or 'nothing'})")
    value = row[field]
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} is to be text, not {type(value).__name__}")
    return value
