"""A reward process: ``python -m forge_core.rewards.worker LIFELINE``.

Two processes in a session of their own. The outer one runs no foreign code, so that nothing keeps
it from killing the whole session once the pool's process is gone, kill -9 included. The inner one
builds the rewards and calls them.
"""

from __future__ import annotations

import math
import numbers
import os
import pickle
import select
import signal
import sys
import threading
from typing import NoReturn

from forge_core.component import BuildContext, Selection
from forge_core.errors import ForgeError, RunFailed
from forge_core.protocols import Reward
from forge_core.rewards.frames import MESSAGE_LIMIT, RECORD, dumps, frame, read_frame, unpack
from forge_core.types import RewardSample

ACKNOWLEDGED = RECORD.pack(0.0, 0)
"""Sent when a batch has been read: the first sample's time begins now."""


def main() -> None:
    """Serve the pool over stdin and stdout; ``LIFELINE`` is a pipe that it never writes to."""
    lifeline = int(sys.argv[1])
    pool = os.getppid()
    commands, results = _take_over_standard_streams()
    inner = os.fork()
    if inner:
        os.close(commands)
        os.close(results)
        _supervise(inner, pool, lifeline)
    os.close(lifeline)
    _die_with_parent()
    _serve(commands, results)


def _take_over_standard_streams() -> tuple[int, int]:
    """Keep the channel for ourselves: foreign code prints to the log and reads nothing."""
    commands, results = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, results


def _supervise(inner: int, pool: int, lifeline: int) -> NoReturn:
    """End as the inner process ends; end everything when the pool's process ends."""

    def watch() -> None:
        # A fork of the pool's process may hold the lifeline open, hence the second condition.
        while os.getppid() == pool and not select.select([lifeline], [], [], 1.0)[0]:
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    _, status = os.waitpid(inner, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    """Ask Linux to kill us when the outer process is killed alone (out of memory, say)."""
    outer = os.getppid()
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != outer:
        os._exit(1)


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
