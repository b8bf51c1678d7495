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

from forge_core.contracts.component import BuildContext, Placement
from forge_core.contracts.errors import RunFailed, UsageError
from forge_core.contracts.protocols import Runtime
from forge_core.contracts.services import ServiceOptions
from forge_core.contracts.types import Episode, RewardSample
from forge_core.processes.frames import dumps
from forge_core.processes.logs import tail
from forge_core.rewards.confinement import Confinement
from forge_core.rewards.frames import PackedSample, pack
from forge_core.rewards.judge import HOPELESS, JudgeSettings, Unit, Verdicts, hopeless, judges
from forge_core.rewards.process import Result
from forge_core.runtimes.local import LocalRuntime
from forge_core.services.service import Service
from forge_core.watchdog import EventSink, Watchdog

if TYPE_CHECKING:
    from forge_core.contracts.config import RewardPart


class RewardPool:
    """Judges episodes with all parts of the reward, on the judges of a service ``rewards``.

    The service starts with the first call of ``score`` and is kept.

    Args:
        parts: the reward's parts by name.
        context: what rewards are built with (without the loss and the transport).
        runtime: where judges live; None: in this process, unless the placement says otherwise.
        placement: how many judges there are, and what they are given.
        log: bounded file that what rewards print is appended to; None: our stderr.
        confinement: environment and limits of reward processes; they also get the variables of the
            placement.
        on_event: told of ``reward_failed`` and ``reward_retried``, and of what befalls judges.
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
        confinement: Confinement | None = None,
        on_event: EventSink | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._parts = dict(parts)
        self._context = replace(context, loss=None, transport=None)
        self._runtime = runtime or LocalRuntime()
        self._placement = placement or Placement()
        self._log = log
        self._confinement = (confinement or Confinement()).placed(self._placement)
        self._on_event = on_event
        self._watchdog = watchdog
        self._service: Service | None = None
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
        """Fill ``rewards``, ``reward`` (the weighted sum) and ``failures`` of every episode.

        Raises:
            RunFailed: a part failed on every episode, or could not be built; no judge is left.
            UsageError: a part cannot be sent to another process.
        """
        if not episodes or not self._parts:
            return
        started = time.perf_counter()
        call = _Call([_sample(episode) for episode in episodes])
        units = [(part, index) for part in self._parts for index in range(len(episodes))]
        await self._judge_all(await self._judges(), call, self._chunks(units))
        self._calls += len(units)
        self._lost += call.lost.total()
        self._retried += len(call.retried)
        self._seconds += time.perf_counter() - started
        for part in self._parts:
            self._report(part, call)
        for index, episode in enumerate(episodes):
            self._fill(episode, {part: call.results[part, index] for part in self._parts})

    def metrics(self) -> dict[str, float]:
        """Totals since the start: calls of rewards, failures (also by part), samples that were
        lost (by a deadline or two deaths of their process) and that were tried once more."""
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
                raise self._hopeless(part, streak.last, streak.calls)

    async def close(self) -> None:
        """Kill every process and what it started. Safe to call twice, and while scoring."""
        self._closed = True
        if self._service is not None:
            await self._service.close()

    # Work.

    async def _judges(self) -> Service:
        async with self._starting:
            if self._closed:
                raise RunFailed("the reward pool is closed")
            if self._service is None:
                self._service = await Service.start(
                    self._runtime,
                    judges(
                        JudgeSettings(
                            opening=self._pickled_parts(),
                            deadlines={name: part.deadline for name, part in self._parts.items()},
                            log=self._log,
                            confinement=self._confinement,
                        )
                    ),
                    self._context,
                    name="rewards",
                    placement=self._placement,
                    options=ServiceOptions(concurrency=1),  # each judge has one process
                    on_event=self._on_event,
                    watchdog=self._watchdog,
                )
            return self._service

    def _chunks(self, units: list[Unit]) -> list[list[Unit]]:
        """One chunk for one judge; a few for each of several, so that they end together."""
        if self._placement.replicas == 1:
            return [units]
        size = -(-len(units) // (4 * self._placement.replicas))
        return [units[start : start + size] for start in range(0, len(units), size)]

    async def _judge_all(self, service: Service, call: _Call, chunks: list[list[Unit]]) -> None:
        """Judge all chunks; the first failure ends the others and is raised."""
        tasks = [asyncio.ensure_future(self._judge(service, call, chunk)) for chunk in chunks]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, service: Service, call: _Call, units: list[Unit]) -> None:
        """Judge one chunk. Made again by the service if its judge dies, so that nothing of it
        counts before all of it does."""
        while units:
            verdicts: Verdicts = await service.judge.route(call.samples_of(units), units)
            call.results.update(zip(units, verdicts.results, strict=False))
            units = units[len(verdicts.results) :]
            call.lost.update(verdicts.lost)
            call.retried += verdicts.retried
            for part in verdicts.lost:
                if call.many_tasks and hopeless(call.lost[part], len(call.of(part))):
                    raise self._hopeless(part, call)

    def _pickled_parts(self) -> bytes:
        pickled = {}
        for name, part in self._parts.items():
            try:
                pickled[name] = dumps(part.selection)
            except Exception as error:
                raise UsageError(
                    f"reward {name!r} cannot be sent to a reward process: {error}; its settings "
                    "and what its build function refers to must be picklable"
                ) from error
        return dumps((pickled, dumps(self._context)))

    # Results.

    def _fill(self, episode: Episode, results: Mapping[str, Result]) -> None:
        episode.failures = {
            part: cause for part, cause in results.items() if isinstance(cause, str)
        }
        values = {
            part: self._parts[part].failure_reward if isinstance(result, str) else result
            for part, result in results.items()
        }
        episode.rewards = {part: value for part, value in values.items() if value is not None}
        episode.left_out = len(episode.rewards) < len(values)
        weighted = (self._parts[part].weight * r for part, r in episode.rewards.items())
        episode.reward = sum(weighted, start=0.0)

    def _report(self, part: str, call: _Call) -> None:
        """Count a part's failures and tell of them; a part that only failed is a bug."""
        causes = call.causes(part)
        failed, judged = causes.total(), len(call.samples)
        self._failures[part] += failed
        if failed == judged:
            if call.many_tasks:
                raise self._hopeless(part, call)
            streak = self._streaks.setdefault(part, _Streak())
            streak.calls += 1
            streak.lost += call.lost[part]
            streak.tasks.add(call.samples[0].task.id)
            streak.last = call
            if streak.hopeless or (part not in self._worked and len(streak.tasks) > 1):
                raise self._hopeless(part, call, streak.calls)
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

    def _hopeless(self, part: str, call: _Call, calls: int = 1) -> RunFailed:
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
    def hopeless(self) -> bool:
        return self.calls >= HOPELESS or (self.calls > 1 and self.lost >= HOPELESS)


@dataclass(slots=True)
class _Call:
    """One call of ``score``."""

    samples: Sequence[RewardSample]
    results: dict[Unit, Result] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)  # samples, by part
    retried: list[tuple[str, str]] = field(default_factory=list)

    @property
    def many_tasks(self) -> bool:
        """Whether more than one task is judged: what fails on all of one may be that task's."""
        return len({sample.task.id for sample in self.samples}) > 1

    def samples_of(self, units: Sequence[Unit]) -> dict[int, PackedSample]:
        """The samples that units need, as the worker reads them."""
        return {index: pack(self.samples[index]) for _, index in units}

    def of(self, part: str) -> list[Result]:
        return [result for (name, _), result in self.results.items() if name == part]

    def causes(self, part: str) -> Counter[str]:
        return Counter(result for result in self.of(part) if isinstance(result, str))


def _sample(episode: Episode) -> RewardSample:
    completions = [turn.completion for turn in episode.turns if turn.completion is not None]
    return RewardSample(
        task=episode.task,
        prompt=episode.prompt_text,
        completion=episode.completion_texts[-1] if episode.completion_texts else "",
        completions=tuple(episode.completion_texts),
        finish_reason=completions[-1].finish_reason if completions else "stop",
        completion_length=episode.completion_length,
    )
