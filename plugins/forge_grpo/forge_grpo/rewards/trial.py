"""One reward over some samples before a run, in a process that can be killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from forge_core import AnyReward, BuildContext, RewardSample, RunFailed
from forge_local.processes.frames import dumps
from forge_rewards.frames import pack
from forge_rewards.process import Attempt, Limits, ProcessLost, Result, RewardProcess


class Tried(Protocol):
    """A reward with its settings, as the process that judges is given it."""

    def build(self, context: BuildContext) -> AnyReward:
        """Make the reward."""


def try_reward(
    reward: Tried,
    context: BuildContext,
    samples: Sequence[RewardSample],
    *,
    deadline: float,
) -> list[Result]:
    """Judge samples as a run would, and wait for the results; a process is gone when this returns.

    Args:
        reward: picklable.
        context: what it is built with.
        samples: to judge.
        deadline: seconds for each.

    Returns:
        for each sample its reward, or why there is none.

    Raises:
        ForgeError: the reward cannot be built.
        RunFailed: its process does not start.
    """
    limits = Limits(deadline)
    opening = dumps(({"reward": dumps(reward)}, dumps(context), {"reward": limits}))
    results: list[Result] = []
    while len(results) < len(samples):
        process = RewardProcess(opening, log=None)
        try:
            _judge_rest(process, samples, results, limits)
        finally:
            process.close()
            process.remove_scratch()
    return results


def _judge_rest(
    process: RewardProcess,
    samples: Sequence[RewardSample],
    results: list[Result],
    limits: Limits,
) -> None:
    """Judge what has no result yet, up to the first sample that costs the process."""
    try:
        process.wait_ready()
    except ProcessLost as loss:
        raise RunFailed(f"a reward process did not start: {loss}") from loss
    form = process.forms["reward"]
    if form.takes != "sample":
        raise RunFailed(f"a reward of {form.takes} cannot be tried on single samples")
    rest = range(len(results), len(samples))
    packed = pack({index: samples[index] for index in rest})
    units = [("reward", (index,)) for index in rest]
    attempt = Attempt()
    cause = ""
    try:
        calls = [replace(limits, is_async=form.is_async)] * len(units)
        process.score(dumps((packed, units)), calls, attempt)
    except ProcessLost as lost:
        cause = str(lost)
    for number in range(len(units)):
        if number not in attempt.results:
            results.append(cause)
            return
        results += attempt.results[number]
