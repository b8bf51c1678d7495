"""A reward process: ``python -m forge_core.rewards.worker LIFELINE``. It builds the rewards and
calls them."""

from __future__ import annotations

import math
import numbers
import os
import pickle
import sys

from forge_core.component import BuildContext, Selection
from forge_core.errors import ForgeError, RunFailed
from forge_core.processes.frames import dumps, frame, read_frame
from forge_core.processes.supervision import divide, take_over_stdin
from forge_core.protocols import Reward
from forge_core.rewards.frames import MESSAGE_LIMIT, RECORD, unpack
from forge_core.types import RewardSample

ACKNOWLEDGED = RECORD.pack(0.0, 0)
"""Sent when a batch has been read: the first sample's time begins now."""


def main() -> None:
    """Serve the pool over stdin and stdout; foreign code prints to the log."""
    commands, results = take_over_stdin(), os.dup(1)
    os.dup2(2, 1)
    divide(int(sys.argv[1]), (commands, results))
    _serve(commands, results)


def _serve(commands: int, results: int) -> None:
    opening = read_frame(commands)
    if opening is None:
        return
    try:
        rewards = _build(opening)
    except ForgeError as error:
        _write(results, frame(dumps(error)))
        return
    _write(results, frame(dumps(None)))
    while (batch := read_frame(commands)) is not None:
        packed, units = pickle.loads(batch)
        samples = {index: unpack(sample) for index, sample in packed.items()}
        os.write(results, ACKNOWLEDGED)
        for part, index in units:
            os.write(results, _judge(rewards[part], samples[index]))


def _build(opening: bytes) -> dict[str, Reward]:
    parts, pickled_context = pickle.loads(opening)
    context: BuildContext = pickle.loads(pickled_context)
    rewards = {}
    for name, pickled in parts.items():
        try:
            selection: Selection[Reward] = pickle.loads(pickled)
            rewards[name] = selection.build(context)
        except ForgeError:
            raise
        except BaseException as error:
            raise RunFailed(f"reward {name!r} cannot be built: {_describe(error)}") from error
    return rewards


def _judge(reward: Reward, sample: RewardSample) -> bytes:
    """The record of one sample. Even ``sys.exit`` costs the sample its reward, not the process."""
    try:
        value: object = reward(sample)
        if not isinstance(value, numbers.Real):
            raise TypeError(f"the reward returned {value!r}, not a number")
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the reward returned {number}")
    except BaseException as error:
        message = _describe(error).encode(errors="replace")
        return RECORD.pack(0.0, len(message)) + message
    return RECORD.pack(number, 0)


def _describe(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [""]
    name = type(error).__name__
    return (f"{name}: {first}" if first else name)[:MESSAGE_LIMIT]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
