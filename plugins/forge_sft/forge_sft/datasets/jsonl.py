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
        description="field with a chat; an assistant message at its end is the response",
    )


class Jsonl:
    """Every line is read and checked when the dataset is made, so that line 90,000 cannot fail a
    run hours later; what stays in memory is where each line begins.
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
            raise DataError(
                f"dataset.path: cannot read {settings.path}: {error.strerror}"
            ) from error

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Task:
        offset, number = self._offsets[index]
        with self.settings.path.open("rb") as file:
            file.seek(offset)
            return self._task(file.readline(), number)

    def _task(self, line: bytes, number: int) -> Task:
        where = f"{self.settings.path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: a JSON object is needed, not {type(row).__name__}")
        names = self.settings
        if names.messages in row:
            return self._chat(row, where)
        prompt = _text(row, names.prompt, where)
        if names.response not in row and names.answer not in row:
            raise DataError(
                f"{where}: neither {names.response!r} nor {names.answer!r} "
                f"(it has: {', '.join(row) or 'nothing'})"
            )
        known = (names.prompt, names.response, names.answer)
        return Task(
            id=where,
            prompt=prompt,
            response=_text(row, names.response, where) if names.response in row else None,
            answer=_text(row, names.answer, where) if names.answer in row else None,
            metadata={key: value for key, value in row.items() if key not in known},
        )

    def _chat(self, row: dict[str, Any], where: str) -> Task:
        name = self.settings.messages
        chat = row[name]
        if not isinstance(chat, list) or not chat:
            raise DataError(f"{where}: {name!r} is to be a list of messages")
        messages = []
        for position, message in enumerate(chat):
            if (
                not isinstance(message, dict)
                or message.get("role") not in ROLES
                or not isinstance(message.get("content"), str)
            ):
                raise DataError(
                    f"{where}: {name}[{position}] needs a role ({', '.join(ROLES)}) and a content"
                )
            messages.append(Message(message["role"], message["content"]))
        response = messages.pop().content if messages[-1].role == "assistant" else None
        answer = _text(row, self.settings.answer, where) if self.settings.answer in row else None
        if not messages or (response is None and answer is None):
            raise DataError(f"{where}: {name!r} has no assistant message at its end to imitate")
        return Task(id=where, prompt=tuple(messages), response=response, answer=answer)


def _text(row: dict[str, Any], field: str, where: str) -> str:
    if field not in row:
        raise DataError(f"{where}: no field {field!r} (it has: {', '.join(row) or 'nothing'})")
    value = row[field]
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} is to be text, not {type(value).__name__}")
    return value


def build(settings: JsonlSettings, context: BuildContext) -> Jsonl:
    return Jsonl(settings)
