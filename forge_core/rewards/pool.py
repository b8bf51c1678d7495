"""Rewards under a deadline, in processes that can be killed.

The rule: a sample whose reward raises, returns no finite number, hangs past its deadline or takes
its process down gets the part's ``failure_reward`` and is counted. A part that fails on *every*
episode of a call (two or more) fails the run: that is a bug and not a hard sample.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.component import BuildContext
from forge_core.errors import RunFailed, UsageError
from forge_core.processes.frames import dumps
from forge_core.rewards.frames import pack
from forge_core.rewards.process import ProcessLost, Result, RewardProcess
from forge_core.types import Episode, RewardSample
from forge_core.watchdog import EventSink, Watchdog, caller

if TYPE_CHECKING:
    from forge_core.config.resolve import RewardPart

HOPELESS = 32
"""A part that hangs or crashes on that many samples, and has judged none, fails the run at once;
each costs a deadline and a new process."""

_Unit = tuple[str, int]
"""Part and index of the sample: one call of one reward."""


class RewardPool:
    """Judges episodes with all parts of the reward.

    Processes start with the first call of ``score`` and are kept.

    Args:
        parts: the reward's parts by name.
        context: what rewards are built with (without the loss and the transport).
        workers: processes; more than one judge in parallel.
        log: file that what rewards print is appended to; None: our stderr.
        on_event: told of ``reward_failed``.
        watchdog: calls register in it.
    """

    def __init__(
        self,
        parts: Mapping[str, RewardPart],
        context: BuildContext,
        *,
        workers: int = 1,
        log: Path | None = None,
        on_event: EventSink | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a reward pool has at least 1 worker, not {workers}")
        self._parts = dict(parts)
        self._context = context
        self._workers = workers
        self._log = log
        self._on_event = on_event
        self._watchdog = watchdog
        self._opening: bytes | None = None
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="forge-rewards")
        self._places = asyncio.Semaphore(workers)
        self._idle: list[RewardProcess] = []
        self._processes: set[RewardProcess] = set()
        self._closed = False
        self._calls = 0
        self._failures: Counter[str] = Counter()
        self._lost = 0
        self._seconds = 0.0

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Fill ``rewards``, ``reward`` (the weighted sum) and ``failures`` of every episode.

        Raises:
            RunFailed: a part failed on every episode, or could not be built.
            UsageError: a part cannot be sent to another process.
        """
        if not episodes or not self._parts:
            return
        started = time.perf_counter()
        samples = [_sample(episode) for episode in episodes]
        units = [(part, index) for part in self._parts for index in range(len(samples))]
        call = _Call(samples)
        watched = (
            self._watchdog.waiting(caller.get(), f"rewards {', '.join(self._parts)}")
            if self._watchdog
            else nullcontext()
        )
        with watched:
            await self._judge_all(call, self._chunks(units))
        self._calls += len(units)
        self._seconds += time.perf_counter() - started
        for part in self._parts:
            self._report(part, call)
        for index, episode in enumerate(episodes):
            self._fill(episode, {part: call.results[part, index] for part in self._parts})

    def metrics(self) -> dict[str, float]:
        """Totals since the start: calls of rewards, failures (also by part), lost processes."""
        return {
            "calls": self._calls,
            "failures": self._failures.total(),
            **{f"failures/{part}": self._failures[part] for part in self._parts},
            "lost_processes": self._lost,
            "seconds": self._seconds,
        }

    async def close(self) -> None:
        """Kill every process and what it started. Safe to call twice, and while scoring."""
        self._closed = True
        for process in self._processes:
            process.kill()  # those at work are closed by who waits for them
        while self._idle:
            self._discard(self._idle.pop())
        self._threads.shutdown(wait=False)

    # Work.

    def _chunks(self, units: list[_Unit]) -> list[list[_Unit]]:
        """One chunk for one worker; a few for each of several, so that they end together."""
        if self._workers == 1:
            return [units]
        size = -(-len(units) // (4 * self._workers))
        return [units[start : start + size] for start in range(0, len(units), size)]

    async def _judge_all(self, call: _Call, chunks: list[list[_Unit]]) -> None:
        """Judge all chunks; the first failure ends the others and is raised."""
        tasks = [asyncio.ensure_future(self._judge(call, chunk)) for chunk in chunks]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, call: _Call, units: list[_Unit]) -> None:
        """Judge one chunk, with as many processes, one after the other, as it takes."""
        while units:
            judged: list[Result] = []
            deadlines = [self._parts[part].deadline for part, _ in units]
            lost = ""
            try:
                async with self._process() as process:
                    await self._in_thread(
                        process, process.score, call.batch(units), deadlines, judged
                    )
            except ProcessLost as loss:
                if self._closed:
                    raise RunFailed("the reward pool was closed while it judged") from None
                lost = str(loss)
            call.results.update(zip(units, judged, strict=False))
            units = units[len(judged) :]
            if lost:
                self._lost += 1
                part, index = units.pop(0)
                call.results[part, index] = lost
                call.lost[part] += 1
                if call.lost[part] >= HOPELESS and call.lost[part] == len(call.of(part)):
                    raise self._hopeless(part, call)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[RewardProcess]:
        """A process of our own for the block; given up when the block ends by an exception."""
        async with self._places:
            if self._closed:
                raise RunFailed("the reward pool is closed")
            process = self._idle.pop() if self._idle else await self._start()
            try:
                yield process
            except BaseException:
                self._discard(process)
                raise
            self._idle.append(process)

    async def _start(self) -> RewardProcess:
        if self._opening is None:
            self._opening = self._pickled_parts()
        # In this thread: Linux ties a child's life to the thread that made it.
        process = RewardProcess(self._opening, self._log)
        self._processes.add(process)
        try:
            await self._in_thread(process, process.wait_ready)
        except BaseException as error:
            self._discard(process)
            if isinstance(error, ProcessLost):
                raise RunFailed(
                    f"a reward process did not start: {error}", log_tail=self._log_tail()
                ) from None
            raise
        return process

    def _discard(self, process: RewardProcess) -> None:
        process.close()
        self._processes.discard(process)

    async def _in_thread(
        self, process: RewardProcess, function: Callable[..., None], *args: object
    ) -> None:
        """Run a blocking method of a process; does not leave before its thread has let go."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            process.kill()
            await asyncio.wait({future})
            raise

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
        context = dumps(replace(self._context, loss=None, transport=None))
        return dumps((pickled, context))

    # Results.

    def _fill(self, episode: Episode, results: Mapping[str, Result]) -> None:
        episode.failures = {
            part: cause for part, cause in results.items() if isinstance(cause, str)
        }
        episode.rewards = {
            part: self._parts[part].failure_reward if isinstance(result, str) else result
            for part, result in results.items()
        }
        episode.reward = sum(self._parts[part].weight * r for part, r in episode.rewards.items())

    def _report(self, part: str, call: _Call) -> None:
        """Count a part's failures and tell of them; a part that only failed is a bug."""
        causes = call.causes(part)
        failed, judged = causes.total(), len(call.samples)
        self._failures[part] += failed
        if failed == judged > 1:
            raise self._hopeless(part, call)
        if failed and self._on_event is not None:
            listed = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(3))
            message = f"reward {part!r} failed on {failed} of {judged} episodes: {listed}"
            data = {"part": part, "failed": failed, "episodes": judged, "causes": dict(causes)}
            self._on_event("reward_failed", message, data)

    def _hopeless(self, part: str, call: _Call) -> RunFailed:
        causes = call.causes(part)
        (cause, _), *others = causes.most_common()
        first = "" if causes.total() == len(call.samples) else "the first "
        more = f" (and {len(others)} other cause{'s' * (len(others) > 1)})" if others else ""
        return RunFailed(
            f"reward {part!r} failed on {first}{causes.total()} of {len(call.samples)} episodes: "
            f"{cause}{more}",
            log_tail=self._log_tail(),
        )

    def _log_tail(self, lines: int = 20) -> list[str]:
        if self._log is None or not self._log.is_file():
            return []
        return self._log.read_text(errors="replace").splitlines()[-lines:]


@dataclass(slots=True)
class _Call:
    """One call of ``score``."""

    samples: Sequence[RewardSample]
    results: dict[_Unit, Result] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)  # processes, by part

    def batch(self, units: Sequence[_Unit]) -> bytes:
        """The units and the samples they need, as the worker reads them."""
        needed = {index: pack(self.samples[index]) for _, index in units}
        return dumps((needed, units))

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
