"""What travels between the pool and a reward process: batches out, small records back.

A record carries a secret and its number in the life of the process, so that nothing but the process
itself can make one and none can be taken for another: rewards run programs, fork and write to
descriptors that are not theirs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from typing import Any

from forge_core import Message, RewardSample, Task
from forge_local.processes.frames import read_frame

SECRET_SIZE = 16
"""Bytes of the secret, the first frame that a reward process is sent."""

RECORD = struct.Struct(f"<{SECRET_SIZE}sQBIdI")
"""Secret, number, kind, index of the call, value, and the length of what follows."""


class Kind(IntEnum):
    """What a record says. What follows it is in parentheses."""

    READY = 0
    """Everything is built (forms of the rewards, JSON), or a batch was read (nothing)."""
    REFUSED = 1
    """A reward could not be built (the error, pickled)."""
    STARTED = 2
    """An ``async`` call has begun (nothing)."""
    VALUE = 3
    """A sample's reward is the value (nothing)."""
    FAILED = 4
    """A call failed (the cause)."""
    LATE = 5
    """An ``async`` call passed its deadline and was cancelled (the cause)."""
    RESULTS = 6
    """What a call returned (JSON: for each sample a cause, or its reward and its metrics)."""


MESSAGE_LIMIT = 500
"""Most characters of a failure's message."""


_TASK_FIELDS = attrgetter(*(field.name for field in fields(Task)))
_SAMPLE_FIELDS = attrgetter(
    *(field.name for field in fields(RewardSample) if field.name not in ("task", "messages"))
)

PackedSample = tuple[tuple[Any, ...], tuple[Any, ...], tuple[tuple[Any, ...], ...]]
"""A sample without its classes: pickling frozen dataclasses takes twenty times as long."""


def pack(samples: Mapping[int, RewardSample]) -> dict[int, PackedSample]:
    """Samples by index; those of one task share it."""
    tasks: dict[int, tuple[Any, ...]] = {}
    packed = {}
    for index, sample in samples.items():
        task = sample.task
        fields = tasks.get(id(task))
        if fields is None:
            fields = tasks[id(task)] = _TASK_FIELDS(task)
        messages = tuple([(each.role, each.content, each.extra) for each in sample.messages])
        packed[index] = fields, _SAMPLE_FIELDS(sample), messages
    return packed


def unpack(packed: Mapping[int, PackedSample]) -> dict[int, RewardSample]:
    """The samples that were packed, by index."""
    tasks: dict[int, Task] = {}
    samples = {}
    for index, (its_task, rest, messages) in packed.items():
        task = tasks.get(id(its_task))
        if task is None:
            task = tasks[id(its_task)] = Task(*its_task)
        conversation = tuple([Message(*message) for message in messages])
        values: tuple[Any, ...] = (task, *rest, conversation)
        samples[index] = RewardSample(*values)
    return samples


class Channel:
    """The reward process's end. It is not the forked children's: they have it closed.

    Args:
        descriptor: of a socket, not of a pipe, which other processes of the user could open through
            ``/proc``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        self._number = 0
        self._secret = read_frame(descriptor) or b""
        os.register_at_fork(after_in_child=self._close)

    def read(self) -> bytes | None:
        """The next frame, or None when the pool has closed its end."""
        return read_frame(self._descriptor)

    def write(self, kind: Kind, call: int = 0, value: float = 0.0, body: bytes = b"") -> None:
        """Write the next record. Does not return in a forked child: a reward came back from
        ``os.fork`` twice."""
        if os.getpid() != self._process:
            os._exit(1)
        data = RECORD.pack(self._secret, self._number, kind, call, value, len(body)) + body
        self._number += 1
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _close(self) -> None:
        self._secret = b""
        with suppress(OSError):
            os.close(self._descriptor)
