"""Rewards under a deadline, in processes that can be killed.

The rule: a sample whose reward raises, returns no finite number, hangs past its deadline or takes
two processes down gets the part's ``failure_reward``, or is left out if there is none, and is
counted. A part that fails on *every* episode of a call (of two tasks or more) fails the run: that
is a bug and not a hard task. Where calls are of one task each, many of them in a row do; two tasks
are enough for a part that has never judged anything, and one at the end of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import (
    BuildContext,
    Episode,
    Placement,
    RewardResult,
    RewardSample,
    RunFailed,
    Runtime,
    ServiceOptions,
    UsageError,
)
from forge_core.contracts.blame import described, title
from forge_core.contracts.built import Takes
from forge_local.processes.frames import dumps
from forge_local.processes.logs import tail
from forge_local.runtime import LocalRuntime
from forge_rewards.confinement import Confinement
from forge_rewards.frames import PackedSample, pack
from forge_rewards.process import Limits, Result
from forge_rewards.reward_worker import (
    MAX_LOST_SAMPLES,
    Scores,
    Unit,
    only_lost,
    reward_worker,
)
from forge_rewards.settings import RewardWorkerSettings
from forge_services.service import Service
from forge_services.watchdog import EventSink, Watchdog

if TYPE_CHECKING:
    from forge_core import RewardPart


ENVIRONMENT = "environment"
"""The part of the reward that the environment itself gives."""


class RewardPool:
    """Scores episodes with all parts of the reward, on the workers of a service ``rewards``.

    The service starts with the first call of ``score`` and is kept.

    Args:
        parts: the reward's parts by name.
        context: what rewards are built with (without the loss and the transport).
        runtime: where workers live; None: in this process, unless the placement says otherwise.
        placement: how many workers there are, and what they are given.
        log: bounded file that what rewards print is appended to; None: our stderr.
        environment_weight: factor of what the environment itself gave, part ``environment``.
        confinement: environment and limits of reward processes; they also get the variables of the
            placement.
        on_event: called for ``reward_failed``, ``reward_retried``, and what happens to workers.
        watchdog: calls register in it.
    """

    def __init__(
        self,
        parts: Mapping[str, RewardPart],
        context: BuildContext,
        *,
        runtime: Runtime | None = None,
        placement: Placement | None = None,
        log: Path | None = None,
        environment_weight: float = 1.0,
        confinement: Confinement | None = None,
        on_event: EventSink | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._parts = dict(parts)
        self._context = replace(context, loss=None, transport=None)
        self._runtime = runtime or LocalRuntime()
        self._placement = placement or Placement()
        self._log = log
        self._environment_weight = environment_weight
        self._confinement = (confinement or Confinement()).placed(self._placement)
        self._on_event = on_event
        self._watchdog = watchdog
        self._service: Service | None = None
        self._takes: dict[str, Takes] = {}
        """What one call of each part judges; known once the service is there."""
        self._starting = asyncio.Lock()
        self._closed = False
        self._calls = 0
        self._failures: Counter[str] = Counter()
        self._streaks: dict[str, _Streak] = {}
        self._worked: set[str] = set()
        """Parts that have judged an episode."""
        self._lost = 0
        self._retried = 0
        self._seconds = 0.0

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Fill ``rewards``, ``reward`` (the weighted sum), ``failures`` and ``metrics`` of every
        episode.

        Raises:
            RunFailed: a part failed on every episode, or could not be built; no worker is left.
            UsageError: a part cannot be sent to another process.
        """
        if not episodes:
            return
        if not self._parts:
            for episode in episodes:
                self._fill(episode, {})
            return
        started = time.perf_counter()
        call = _Call([_sample(episode) for episode in episodes], groups_of(episodes))
        service = await self._workers()
        units = [unit for part in self._parts for unit in self._units(part, call)]
        await self._score_all(service, call, self._chunks(units))
        self._calls += len(self._parts) * len(episodes)
        self._lost += call.lost.total()
        self._retried += len(call.retried)
        self._seconds += time.perf_counter() - started
        for part in self._parts:
            self._report(part, call)
        for index, episode in enumerate(episodes):
            self._fill(episode, {part: call.results[part, index] for part in self._parts})

    def metrics(self) -> dict[str, float]:
        """Totals since the start: samples scored (by each part), failures (also by part), samples
        that were lost (by a deadline or two deaths of their process) and calls tried once more."""
        return {
            "calls": self._calls,
            "failures": self._failures.total(),
            **{f"failures/{part}": self._failures[part] for part in self._parts},
            "lost": self._lost,
            "retried": self._retried,
            "seconds": self._seconds,
        }

    def check_judged(self) -> None:
        """Every part has judged something; for the end of a run, which may be short.

        Raises:
            RunFailed: a part failed on every episode of all calls.
        """
        for part, streak in self._streaks.items():
            if part not in self._worked and streak.last is not None:
                raise self._broken(part, streak.last, streak.calls)

    async def close(self) -> None:
        """Kill every process and what it started. Safe to call twice, and while scoring."""
        self._closed = True
        if self._service is not None:
            await self._service.close()

    # Work.

    async def _workers(self) -> Service:
        async with self._starting:
            if self._closed:
                raise RunFailed("the reward pool is closed")
            if self._service is None:
                limits = {
                    name: Limits(part.deadline, part.concurrency)
                    for name, part in self._parts.items()
                }
                self._service = await Service.start(
                    self._runtime,
                    reward_worker(
                        RewardWorkerSettings(
                            opening=self._pickled_parts(limits),
                            limits=limits,
                            log=self._log,
                            confinement=self._confinement,
                        )
                    ),
                    self._context,
                    name="rewards",
                    placement=self._placement,
                    options=ServiceOptions(concurrency=1),  # each worker has one process
                    on_event=self._on_event,
                    watchdog=self._watchdog,
                )
            if not self._takes:
                self._takes = await self._service.takes.route()
            return self._service

    def _units(self, part: str, call: _Call) -> list[Unit]:
        """The calls of a part: of its samples one by one, by group, or evenly by worker."""
        everything = range(len(call.samples))
        match self._takes[part]:
            case "sample":
                return [(part, (index,)) for index in everything]
            case "group":
                return [(part, group) for group in call.groups]
            case "samples":
                size = -(-len(everything) // self._placement.replicas)
                starts = range(0, len(everything), size)
                return [(part, tuple(everything[start : start + size])) for start in starts]

    def _chunks(self, units: list[Unit]) -> list[list[Unit]]:
        """One chunk for one worker; a few for each of several, so that they end together."""
        if self._placement.replicas == 1:
            return [units]
        size = -(-len(units) // (4 * self._placement.replicas))
        return [units[start : start + size] for start in range(0, len(units), size)]

    async def _score_all(self, service: Service, call: _Call, chunks: list[list[Unit]]) -> None:
        """Score all chunks; the first failure ends the others and is raised."""
        tasks = [asyncio.ensure_future(self._score(service, call, chunk)) for chunk in chunks]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _score(self, service: Service, call: _Call, units: list[Unit]) -> None:
        """Score one chunk. The service does it again if its worker dies, so that nothing of it
        counts before all of it does."""
        while units:
            scores: Scores = await service.score.route(call.samples_of(units), units)
            for number, results in scores.results.items():
                part, indexes = units[number]
                for index, result in zip(indexes, results, strict=True):
                    call.results[part, index] = result
            units = [unit for number, unit in enumerate(units) if number not in scores.results]
            call.lost.update(scores.lost)
            call.retried += scores.retried
            for part in scores.lost:
                if call.many_tasks and only_lost(call.lost[part], len(call.of(part))):
                    raise self._broken(part, call)

    def _pickled_parts(self, limits: Mapping[str, Limits]) -> bytes:
        pickled = {}
        for name, part in self._parts.items():
            try:
                pickled[name] = dumps(part.selection)
            except Exception as error:
                raise UsageError(
                    f"rewards.{name}: {title(part.selection)} cannot be sent to a reward process: "
                    f"{described(error)}; its settings and what its build function refers to must "
                    "be picklable"
                ) from error
        return dumps((pickled, dumps(self._context), dict(limits)))

    # Results.

    def _fill(self, episode: Episode, results: Mapping[str, Result]) -> None:
        episode.failures = {
            part: cause for part, cause in results.items() if isinstance(cause, str)
        }
        values = {part: self._value(part, result) for part, result in results.items()}
        episode.rewards = {part: value for part, value in values.items() if value is not None}
        episode.left_out = len(episode.rewards) < len(values)
        weighted = (self._parts[part].weight * r for part, r in episode.rewards.items())
        episode.reward = sum(weighted, start=0.0)
        given = episode.environment_reward
        if given is not None:
            episode.rewards[ENVIRONMENT] = given
            episode.reward += self._environment_weight * given

        for part, result in results.items():
            if isinstance(result, RewardResult):
                for name, value in result.metrics.items():
                    episode.metrics[f"reward/{part}/{name}"] = value

    def _value(self, part: str, result: Result) -> float | None:
        if isinstance(result, RewardResult):
            return result.value
        return self._parts[part].failure_reward if isinstance(result, str) else result

    def _report(self, part: str, call: _Call) -> None:
        """Count and report a part's failures; a part that only failed is a bug."""
        causes = call.causes(part)
        failed, judged = causes.total(), len(call.samples)
        self._failures[part] += failed
        if failed == judged:
            if call.many_tasks:
                raise self._broken(part, call)
            streak = self._streaks.setdefault(part, _Streak())
            streak.calls += 1
            streak.lost += call.lost[part]
            streak.tasks.add(call.samples[0].task.id)
            streak.last = call
            if streak.broken or (part not in self._worked and len(streak.tasks) > 1):
                raise self._broken(part, call, streak.calls)
        else:
            self._streaks.pop(part, None)
            self._worked.add(part)
        retried = Counter(cause for name, cause in call.retried if name == part)
        if retried:
            self._tell("reward_retried", part, "died over", retried, judged)
        if failed:
            self._tell("reward_failed", part, "failed on", causes, judged)

    def _tell(self, kind: str, part: str, what: str, causes: Counter[str], judged: int) -> None:
        if self._on_event is None:
            return
        count = causes.total()
        listed = ", ".join(f"{cause} ({times})" for cause, times in causes.most_common(3))
        message = f"reward {part!r} {what} {count} of {judged} episodes: {listed}"
        data = {"part": part, "failed": count, "episodes": judged, "causes": dict(causes)}
        self._on_event(kind, message, data)

    def _broken(self, part: str, call: _Call, calls: int = 1) -> RunFailed:
        """The failure of the run by a part that fails on everything.

        Args:
            part: its name.
            call: the last one.
            calls: as many in a row that it failed on, if each was of one task.
        """
        causes = call.causes(part)
        (cause, _), *others = causes.most_common()
        first = "" if causes.total() == len(call.samples) else "the first "
        more = f" (and {len(others)} other cause{'s' * (len(others) > 1)})" if others else ""
        what = f"{first}{causes.total()} of {len(call.samples)} episodes"
        if calls > 1:
            what = f"every episode of {calls} calls in a row"
        return RunFailed(
            f"reward {part!r} failed on {what}: {cause}{more}",
            log_tail=tail(self._log),
        )


@dataclass(slots=True)
class _Streak:
    """Calls in a row, of one task each, in which a part failed on every episode."""

    calls: int = 0
    lost: int = 0  # samples, as in a call
    tasks: set[str] = field(default_factory=set)  # their ids
    last: _Call | None = None

    @property
    def broken(self) -> bool:
        return self.calls >= MAX_LOST_SAMPLES or (self.calls > 1 and self.lost >= MAX_LOST_SAMPLES)


@dataclass(slots=True)
class _Call:
    """One call of ``score``."""

    samples: Sequence[RewardSample]
    groups: Sequence[tuple[int, ...]]
    results: dict[tuple[str, int], Result] = field(default_factory=dict)
    """By part and index of the sample."""
    lost: Counter[str] = field(default_factory=Counter)  # samples, by part
    retried: list[tuple[str, str]] = field(default_factory=list)

    @property
    def many_tasks(self) -> bool:
        """Whether more than one task is judged: what fails on all of one may be that task's."""
        return len({sample.task.id for sample in self.samples}) > 1

    def samples_of(self, units: Sequence[Unit]) -> dict[int, PackedSample]:
        """The samples that units need, as the worker reads them."""
        indexes = {index for _, indexes in units for index in indexes}
        return pack({index: self.samples[index] for index in indexes})

    def of(self, part: str) -> list[Result]:
        return [result for (name, _), result in self.results.items() if name == part]

    def causes(self, part: str) -> Counter[str]:
        return Counter(result for result in self.of(part) if isinstance(result, str))


def groups_of(episodes: Sequence[Episode]) -> list[tuple[int, ...]]:
    """Indexes of the episodes that were sampled together for one task and one agent."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, episode in enumerate(episodes):
        key = (episode.task.id, episode.group, episode.agent)
        groups.setdefault(key, []).append(index)
    return [tuple(group) for group in groups.values()]


def _sample(episode: Episode) -> RewardSample:
    completions = [turn.completion for turn in episode.turns if turn.completion is not None]
    return RewardSample(
        task=episode.task,
        prompt=episode.prompt_text,
        completion=episode.completion_texts[-1] if episode.completion_texts else "",
        completions=tuple(episode.completion_texts),
        finish_reason=completions[-1].finish_reason if completions else "stop",
        completion_length=episode.completion_length,
        messages=tuple(episode.messages),
        observations=tuple(episode.observation_texts),
        agent=episode.agent,
    )
