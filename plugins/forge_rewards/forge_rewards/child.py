"""A reward process: ``python -m forge_rewards.child``.

It builds the rewards and calls them.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import numbers
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_core import BuildContext, ForgeError, RewardResult, RewardSample, RunFailed, Selection
from forge_core.contracts.blame import place_in_file
from forge_core.contracts.built import Takes, is_async, reward_takes
from forge_local.processes.frames import dumps
from forge_local.processes.supervision import become_child
from forge_rewards.confinement import Confinement, close_to_other_processes
from forge_rewards.frames import MESSAGE_LIMIT, Channel, Kind, unpack
from forge_rewards.process import Limits


def main() -> None:
    """Serve the pool, in a process that does not outlive it; foreign code prints to the log."""
    channel, _ = become_child()
    close_to_other_processes()
    _serve(Channel(channel))


@dataclass(frozen=True)
class _Part:
    """A built reward, what one call of it judges, and whether it is awaited."""

    reward: Any
    takes: Takes
    is_async: bool
    limits: Limits


@dataclass(frozen=True)
class _Call:
    """One call of a reward: its number in the batch and what it judges."""

    number: int
    part: _Part
    samples: Sequence[RewardSample]

    @property
    def argument(self) -> Any:
        return self.samples[0] if self.part.takes == "sample" else self.samples


def _serve(channel: Channel) -> None:
    opening = channel.read()
    if opening is None:
        return
    confinement: Confinement
    pickled_parts, confinement = pickle.loads(opening)
    try:
        parts = _build(pickled_parts)
    except ForgeError as error:
        channel.write(Kind.REFUSED, body=dumps(error))
        return
    confinement.apply()
    forms = {name: [part.takes, part.is_async] for name, part in parts.items()}
    channel.write(Kind.READY, body=json.dumps(forms).encode())
    with asyncio.Runner() as runner:  # one loop for all batches: clients and their pools live on it
        while (batch := channel.read()) is not None:
            packed, units = pickle.loads(batch)
            samples = unpack(packed)
            channel.write(Kind.READY)  # the batch was read: the first call's time begins now
            calls = [
                _Call(number, parts[part], [samples[index] for index in indexes])
                for number, (part, indexes) in enumerate(units)
            ]
            for call in calls:
                if not call.part.is_async:
                    confinement.begin_sample()
                    _judge(channel, call)
            together = [call for call in calls if call.part.is_async]
            if together:
                runner.run(_judge_together(channel, together, confinement))


def _build(opening: bytes) -> dict[str, _Part]:
    parts, pickled_context, limits = pickle.loads(opening)
    context: BuildContext = pickle.loads(pickled_context)
    rewards = {}
    for name, pickled in parts.items():
        try:
            selection: Selection[Any] = pickle.loads(pickled)
            reward = selection.build(context)
            rewards[name] = _Part(reward, reward_takes(reward), is_async(reward), limits[name])
        except ForgeError:
            raise
        except BaseException as error:
            raise RunFailed(f"reward {name!r} cannot be built: {_describe(error)}") from error
    return rewards


def _judge(channel: Channel, call: _Call) -> None:
    """Call a reward. Even ``sys.exit`` costs the samples their reward, not the process."""
    try:
        answer = call.part.reward(call.argument)
        if inspect.isawaitable(answer):
            raise TypeError("the reward returned something to await; write `async def`")
    except BaseException as error:
        channel.write(Kind.FAILED, call.number, body=_describe(error).encode(errors="replace"))
    else:
        _write(channel, call, answer)


async def _judge_together(
    channel: Channel, calls: Sequence[_Call], confinement: Confinement
) -> None:
    """Make ``async`` calls at the same time, as many of each part as it may have under way."""
    turns = {
        id(part): asyncio.Semaphore(part.limits.concurrency)
        for part in {id(call.part): call.part for call in calls}.values()
    }
    await asyncio.gather(
        *(_judge_async(channel, call, turns[id(call.part)], confinement) for call in calls)
    )


async def _judge_async(
    channel: Channel, call: _Call, turn: asyncio.Semaphore, confinement: Confinement
) -> None:
    async with turn:
        confinement.begin_sample()
        channel.write(Kind.STARTED, call.number)
        deadline = call.part.limits.deadline
        kind = Kind.FAILED
        try:
            async with asyncio.timeout(deadline) as scope:
                answer = await call.part.reward(call.argument)
        except BaseException as error:
            cause = _describe(error)
            if scope.expired():
                kind, cause = Kind.LATE, f"deadline of {deadline:g} s passed"
            channel.write(kind, call.number, body=cause.encode(errors="replace"))
        else:
            _write(channel, call, answer)


def _write(channel: Channel, call: _Call, answer: object) -> None:
    """Tell what a call returned."""
    if call.part.takes == "sample":
        try:
            value, metrics = _checked(answer)
        except Exception as error:
            channel.write(Kind.FAILED, call.number, body=_describe(error).encode(errors="replace"))
            return
        if not metrics:
            channel.write(Kind.VALUE, call.number, value)
            return
        results: list[Any] = [[value, metrics]]
    else:
        try:
            shown = repr(answer)
            if isinstance(answer, str | Mapping):
                raise TypeError
            answers = list(answer)  # type: ignore[call-overload]
            shown = f"{len(answers)} rewards"
            if len(answers) != len(call.samples):
                raise TypeError
        except TypeError:
            cause = f"TypeError: the reward returned {shown} for {len(call.samples)} samples"
            body = cause[:MESSAGE_LIMIT].encode(errors="replace")
            channel.write(Kind.FAILED, call.number, body=body)
            return
        results = []
        for each in answers:
            try:
                results.append(_checked(each))
            except Exception as error:
                results.append(_describe(error))
    channel.write(Kind.RESULTS, call.number, body=json.dumps(results).encode())


def _checked(answer: object) -> tuple[float, dict[str, float]]:
    """A reward and its metrics.

    Raises:
        TypeError: it is no number.
        ValueError: it is not finite.
    """
    metrics: Mapping[str, float] = {}
    value = answer
    if isinstance(answer, RewardResult):
        value, metrics = answer.value, answer.metrics
    if not isinstance(value, numbers.Real):
        raise TypeError(f"the reward returned {value!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the reward returned {number}")
    if not metrics:
        return number, {}
    measured: dict[str, float] = {}
    for name, metric in metrics.items():
        if not isinstance(name, str) or not isinstance(metric, numbers.Real):
            raise TypeError(f"the reward returned metric {name!r}: {metric!r}, not a number")
        measured[name] = float(metric)
        if not math.isfinite(measured[name]):
            raise ValueError(f"the reward returned metric {name!r}: {metric}")
    return number, measured


def _describe(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [""]
    name = type(error).__name__
    place = place_in_file(error)
    return (f"{name}: {first}" if first else name)[: MESSAGE_LIMIT - len(place)] + place


if __name__ == "__main__":
    main()
