"""What a replica's ranks and their controller say to each other: messages of kind, number and body.

Messages that belong together travel in one frame. The body of a call is ``(method, args, kwargs)``,
that of a result its value, that of an error what ``pack_error`` makes of it; all pickled. Call
number 0 is the building of the component.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from forge_core import RunFailed
from forge_local.processes.frames import LENGTH, dumps

BUILDING = 0
"""Number of the call that builds the component; it is made by starting the process."""

BUFFERED = 1 << 24
"""Bytes that a reader takes before it has the sender wait: a step's token data are megabytes."""

_HEADER = struct.Struct("<BQQ")


class Kind(IntEnum):
    """What a message is. The first four go to a rank, the others come from it."""

    OPENING = 0
    CALL = 1
    CANCEL = 2
    STOP = 3
    RESULT = 4
    ERROR = 5


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``number`` says which call it belongs to."""

    kind: Kind
    number: int
    body: bytes | memoryview = b""


def encode(messages: Sequence[Message]) -> bytes:
    """One frame of messages, which the other end receives together."""
    parts: list[bytes | memoryview] = [b""]
    for message in messages:
        parts += (_HEADER.pack(message.kind, message.number, len(message.body)), message.body)
    parts[0] = LENGTH.pack(sum(len(part) for part in parts))
    return b"".join(parts)


async def receive(reader: asyncio.StreamReader) -> list[Message]:
    """The messages of the next frame; none at the end of the stream."""
    try:
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        frame = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return []
    messages = []
    body = memoryview(frame)
    at = 0
    while at < size:
        kind, number, length = _HEADER.unpack_from(frame, at)
        at += _HEADER.size
        messages.append(Message(Kind(kind), number, body[at : at + length]))
        at += length
    return messages


class RemoteTraceback(Exception):
    """Stands as the cause of an exception that another process raised, with its traceback."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def pack_error(error: BaseException) -> bytes:
    """An exception for another process: itself where it can be pickled, and its traceback."""
    described = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickled = dumps(error)
    except Exception:  # a lock in it, say: it travels as its words
        pickled = b""
    return pickle.dumps((pickled, described, trace))


def unpack_error(body: bytes | memoryview) -> Exception:
    """The exception as it was raised, else a ``RunFailed`` with its words; caused by a
    ``RemoteTraceback``."""
    pickled, described, trace = pickle.loads(body)
    try:
        error: Exception = pickle.loads(pickled)
        assert isinstance(error, Exception)  # and not SystemExit, which would end this process
    except Exception:
        error = RunFailed(described)
    error.__cause__ = RemoteTraceback(trace)
    return error
