"""What travels between the pool and a reward process: batches out, small records back.

A record carries a secret and its number in the life of the process, so that nothing but the process
itself can make one and none can be taken for another: rewards run programs, fork and write to
descriptors that are not theirs.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from typing import Any

from forge_core.contracts.types import RewardSample, Task
from forge_core.processes.frames import read_frame

SECRET_SIZE = 16
"""Bytes of the secret, the first frame that a reward process is sent."""

RECORD = struct.Struct(f"<{SECRET_SIZE}sQdI")
"""Secret, number, value, and the length of what follows."""

MESSAGE_LIMIT = 500
"""Most characters of a failure's message."""


_TASK_FIELDS = attrgetter(*(field.name for field in fields(Task)))
_SAMPLE_FIELDS = attrgetter(*(field.name for field in fields(RewardSample) if field.name != "task"))

PackedSample = tuple[tuple[Any, ...], tuple[Any, ...]]
"""A sample without its classes: pickling frozen dataclasses takes twenty times as long."""


def pack(sample: RewardSample) -> PackedSample:
    return _TASK_FIELDS(sample.task), _SAMPLE_FIELDS(sample)


def unpack(packed: PackedSample) -> RewardSample:
    task, rest = packed
    return RewardSample(Task(*task), *rest)


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

    def write(self, value: float, body: bytes = b"") -> None:
        """Write the next record. Does not return in a forked child: a reward came back from
        ``os.fork`` twice."""
        if os.getpid() != self._process:
            os._exit(1)
        data = RECORD.pack(self._secret, self._number, value, len(body)) + body
        self._number += 1
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _close(self) -> None:
        self._secret = b""
        with suppress(OSError):
            os.close(self._descriptor)
