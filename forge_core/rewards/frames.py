"""What travels between the pool and a reward process: batches out, small records back."""

from __future__ import annotations

import struct
from dataclasses import fields
from operator import attrgetter
from typing import Any

from forge_core.types import RewardSample, Task

RECORD = struct.Struct("<dI")
"""Result of one sample: its reward, and the length of the message that follows if it failed."""

MESSAGE_LIMIT = 500
"""Most characters of a failure's message; a record must stay below PIPE_BUF (4096 bytes)."""


_TASK_FIELDS = attrgetter(*(field.name for field in fields(Task)))
_SAMPLE_FIELDS = attrgetter(*(field.name for field in fields(RewardSample) if field.name != "task"))

PackedSample = tuple[tuple[Any, ...], tuple[Any, ...]]
"""A sample without its classes: pickling frozen dataclasses takes twenty times as long."""


def pack(sample: RewardSample) -> PackedSample:
    return _TASK_FIELDS(sample.task), _SAMPLE_FIELDS(sample)


def unpack(packed: PackedSample) -> RewardSample:
    task, rest = packed
    return RewardSample(Task(*task), *rest)
