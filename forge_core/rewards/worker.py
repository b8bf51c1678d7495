"""A reward process: ``python -m forge_core.rewards.worker LIFELINE LOG SCRATCH PROCESSES``.

It builds the rewards and calls them.
"""

from __future__ import annotations

import math
import numbers
import pickle
import sys
from pathlib import Path

from forge_core.contracts.component import BuildContext, Selection
from forge_core.contracts.errors import ForgeError, RunFailed
from forge_core.contracts.protocols import Reward
from forge_core.contracts.types import RewardSample
from forge_core.processes.frames import dumps
from forge_core.processes.supervision import divide, take_over_stdin
from forge_core.rewards.confinement import Confinement, close_to_other_processes
from forge_core.rewards.frames import MESSAGE_LIMIT, Channel, unpack


def main() -> None:
    """Serve the pool over the socket that is our standard input; foreign code prints to the log."""
    channel = take_over_stdin()
    lifeline, log, scratch, processes = sys.argv[1:]
    divide(
        int(lifeline),
        (channel,),
        log=Path(log) if log else None,
        scratch=Path(scratch),
        processes=int(processes),
    )
    close_to_other_processes()
    _serve(Channel(channel))


def _serve(channel: Channel) -> None:
    opening = channel.read()
    if opening is None:
        return
    confinement: Confinement
    pickled_parts, confinement = pickle.loads(opening)
    try:
        rewards = _build(pickled_parts)
    except ForgeError as error:
        channel.write(0.0, dumps(error))
        return
    confinement.apply()
    channel.write(0.0)
    while (batch := channel.read()) is not None:
        packed, units = pickle.loads(batch)
        samples = {index: unpack(sample) for index, sample in packed.items()}
        channel.write(0.0)  # the batch was read: the first sample's time begins now
        for part, index in units:
            confinement.begin_sample()
            channel.write(*_judge(rewards[part], samples[index]))


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


def _judge(reward: Reward, sample: RewardSample) -> tuple[float, bytes]:
    """The reward of one sample, or 0 and why there is none.

    Even ``sys.exit`` costs the sample its reward, not the process.
    """
    try:
        value: object = reward(sample)
        if not isinstance(value, numbers.Real):
            raise TypeError(f"the reward returned {value!r}, not a number")
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the reward returned {number}")
    except BaseException as error:
        return 0.0, _describe(error).encode(errors="replace")
    return number, b""


def _describe(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [""]
    name = type(error).__name__
    return (f"{name}: {first}" if first else name)[:MESSAGE_LIMIT]


if __name__ == "__main__":
    main()
