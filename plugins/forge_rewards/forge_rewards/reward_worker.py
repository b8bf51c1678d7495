"""A reward worker: a reward process, and what becomes of the samples that cost one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from forge_core import Component, RunFailed, Selection
from forge_core.contracts.built import Takes
from forge_local.processes.frames import dumps
from forge_local.processes.logs import tail
from forge_rewards.frames import PackedSample
from forge_rewards.process import (
    Attempt,
    DeadlinePassed,
    ProcessLost,
    Result,
    RewardProcess,
)
from forge_rewards.settings import RewardWorkerSettings

MAX_LOST_SAMPLES = 32
"""A part that hangs or crashes on that many samples, and has scored none, fails the run at once;
each costs a deadline or two processes."""

Unit = tuple[str, tuple[int, ...]]
"""Part and indexes of the samples: one call of one reward."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What became of the units that a worker was given.

    Args:
        results: by position of the unit, one for each of its samples; without some units when a
            part only loses samples.
        lost: samples that passed their deadline or took two processes down, by part.
        retried: part and cause, for each unit that was tried once more.
    """

    results: dict[int, list[Result]] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    retried: list[tuple[str, str]] = field(default_factory=list)


class RewardWorker:
    """Scores units in a process that it starts with the first call, keeps, and kills.

    A unit that passes its deadline costs the process, and its samples their reward. One whose
    process dies is tried once more in a fresh one: something else may have killed it. Where several
    ``async`` calls were under way, each is tried once more on its own, so that the one at fault is
    found.
    """

    def __init__(self, settings: RewardWorkerSettings) -> None:
        self._settings = settings
        self._process: RewardProcess | None = None
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forge-rewards")
        self._closed = False

    async def takes(self) -> dict[str, Takes]:
        """What one call of each part's reward judges.

        Raises:
            ForgeError: a reward cannot be built.
            RunFailed: no process comes up, or the worker was closed.
        """
        async with self._turn:
            process = await self._ready()
            return {part: form.takes for part, form in process.forms.items()}

    async def score(self, samples: Mapping[int, PackedSample], units: Sequence[Unit]) -> Scores:
        """Call a reward for each unit, with as many processes, one after the other, as it takes.

        Args:
            samples: those that the units speak of, by index.
            units: what to score.

        Raises:
            ForgeError: a reward cannot be built.
            RunFailed: no process comes up, or the worker was closed.
        """
        scores = Scores()
        suspects: list[int] = []  # units that are tried once more, each on its own
        died: set[int] = set()  # units whose process has died over them alone
        async with self._turn:
            while len(scores.results) < len(units):
                suspects = [number for number in suspects if number not in scores.results]
                left = [number for number in range(len(units)) if number not in scores.results]
                now = suspects[:1] or left
                attempt = Attempt()
                loss = await self._attempt(samples, [units[number] for number in now], attempt)
                for position, results in attempt.results.items():
                    scores.results[now[position]] = results
                given_up = [now[position] for position in attempt.late]
                if loss is not None:
                    under_way = [now[position] for position in attempt.under_way]
                    under_way = under_way or [n for n in now if n not in scores.results][:1]
                    number = under_way[0]
                    alone = len(under_way) == 1
                    if alone and (isinstance(loss, DeadlinePassed) or number in died):
                        scores.results[number] = [str(loss)] * len(units[number][1])
                        given_up.append(number)
                    else:
                        suspects += under_way
                        died |= {number} if alone else set()
                        scores.retried.extend((units[each][0], str(loss)) for each in under_way)
                for number in given_up:
                    scores.lost[units[number][0]] += len(units[number][1])
                if any(
                    only_lost(scores.lost[part], _scored(part, units, scores))
                    for part in {units[number][0] for number in given_up}
                ):
                    break
        return scores

    async def close(self) -> None:
        """Kill the process and what it started. Safe to call twice, and while scoring."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        async with self._turn:
            self._discard()
        self._thread.shutdown(wait=False)

    async def _attempt(
        self, samples: Mapping[int, PackedSample], units: Sequence[Unit], attempt: Attempt
    ) -> ProcessLost | None:
        """Score the units with one process; given up when this ends by an exception.

        Returns:
            how the process was lost, if it was.
        """
        needed = {index for _, indexes in units for index in indexes}
        batch = dumps(({index: samples[index] for index in needed}, units))
        try:
            process = await self._ready()
            calls = [
                replace(
                    self._settings.limits[part],
                    samples=len(indexes),
                    is_async=process.forms[part].is_async,
                )
                for part, indexes in units
            ]
            await self._in_thread(process, process.score, batch, calls, attempt)
        except BaseException as error:
            self._discard()
            if not isinstance(error, ProcessLost):
                raise
            if self._closed:
                raise RunFailed("the reward pool was closed while it judged") from None
            return error
        return None

    async def _ready(self) -> RewardProcess:
        """The process that there is, else a fresh one; one that dies while it starts is tried
        once more."""
        if self._process is not None:
            return self._process
        for _ in range(2):
            if self._closed:
                raise RunFailed("the reward pool is closed")
            process = self._process = RewardProcess(
                self._settings.opening, self._settings.log, self._settings.confinement
            )
            try:
                await self._in_thread(process, process.wait_ready)
                return process
            except ProcessLost as loss:
                self._discard()
                cause = loss
                if isinstance(loss, DeadlinePassed):
                    break
            except BaseException:
                self._discard()
                raise
        raise RunFailed(
            f"a reward process did not start: {cause}", log_tail=tail(self._settings.log)
        )

    def _discard(self) -> None:
        if self._process is not None:
            self._process.close()
            # In the thread: a program may have left millions of files.
            self._thread.submit(self._process.remove_scratch)
            self._process = None

    async def _in_thread(
        self, process: RewardProcess, function: Callable[..., None], *args: object
    ) -> None:
        """Run a blocking method of a process; does not leave before its thread has let go."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            process.kill()
            await asyncio.wait({future})
            future.exception()  # retrieved, so that asyncio does not log it
            raise


def _scored(part: str, units: Sequence[Unit], scores: Scores) -> int:
    """Samples of a part for which there is a result, or a cause."""
    return sum(len(units[number][1]) for number in scores.results if units[number][0] == part)


def only_lost(lost: int, scored: int) -> bool:
    """Whether many samples of a part were lost, and all that were scored."""
    return lost == scored >= MAX_LOST_SAMPLES


def reward_worker(settings: RewardWorkerSettings) -> Selection[RewardWorker]:
    """The component that a service of reward workers has."""
    return Selection(family="reward", component=REWARD_WORKER, settings=settings)


REWARD_WORKER: Component[RewardWorker] = Component(
    name="worker",
    settings=RewardWorkerSettings,
    build="forge_rewards.reward_worker:RewardWorker",
    summary="scores samples in a process that can be killed",
)
