"""Dataset ``jsonl``: one JSON object a line, with a prompt and what should follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from forge_core import BuildContext, DataError, Message, Settings, Task

ROLES = ("system", "user", "assistant", "tool")


class JsonlSettings(Settings):
    """Where the lines are and what their fields are called."""

    path: Path = Field(description="file with one JSON object a line")
    prompt: str = Field("prompt", description="field with the prompt")
    response: str = Field("response", description="field with the text to imitate; may be missing")
    answer: str = Field("answer", description="field with the reference answer; may be missing")
    messages: str = Field(
        "messages",
        description="field with a chat, which counts before a prompt where a line has both; an "
        "assistant message at its end is the response",
    )


class Jsonl:
    """Every line is read and checked when the dataset is made, so that line 90,000 cannot fail a
    run hours later; what stays in memory is where each line begins.

    Raises:
        DataError: the file cannot be read, holds no row, or a line is wrong (names the line).
    """

    def __init__(self, settings: JsonlSettings) -> None:
        self.settings = settings
        self._offsets: list[tuple[int, int]] = []
        try:
            with settings.path.open("rb") as file:
                offset = 0
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        self._task(line, number)
                        self._offsets.append((offset, number))
                    offset += len(line)
        except OSError as error:
            raise DataError(f"dataset jsonl: {settings.path}: {error.strerror}") from error
        if not self._offsets:
            raise DataError(f"dataset jsonl: {settings.path}: holds no row")

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
            metadata=_others(row, names.prompt, names.response, names.answer),
        )

    def _chat(self, row: dict[str, Any], number: int) -> Task:
        names, where = self.settings, self._where(number)
        chat = row[names.messages]
        if not isinstance(chat, list) or not chat:
            raise DataError(f"{where}: {names.messages!r} is to be a list of messages")
        messages = [
            _message(message, f"{where}: {names.messages}[{position}]")
            for position, message in enumerate(chat)
        ]
        response = messages.pop().content if messages[-1].role == "assistant" else None
        answer = _text(row, names.answer, where) if names.answer in row else None
        if response is None and answer is None:
            raise DataError(
                f"{where}: {names.messages!r} has no assistant message at its end to imitate, and "
                f"there is no {names.answer!r}"
            )
        if not messages:
            raise DataError(f"{where}: {names.messages!r} has nothing before the response")
        return Task(
            id=self._id(number),
            prompt=tuple(messages),
            response=response,
            answer=answer,
            metadata=_others(row, names.messages, names.answer),
        )

    def _where(self, number: int) -> str:
        return f"{self.settings.path}:{number}"

    def _id(self, number: int) -> str:
        # Without the folder, so that seeds derived from it are the same on every machine.
        return f"{self.settings.path.name}:{number}"


def _message(message: object, where: str) -> Message:
    if (
        isinstance(message, dict)
        and message.get("role") in ROLES
        and isinstance(message.get("content"), str)
    ):
        return Message(message["role"], message["content"])
    raise DataError(f"{where} needs a role ({', '.join(ROLES)}) and a content that is text")


def _others(row: dict[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in known}


def _text(row: dict[str, Any], field: str, where: str) -> str:
    if field not in row:
        raise DataError(f"{where}: no field {field!r} (it has: {', '.join(row) or 'nothing'})")
    value = row[field]
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} is to be text, not {type(value).__name__}")
    return value


def build(settings: JsonlSettings, context: BuildContext) -> Jsonl:
    return Jsonl(settings)
