"""A reward worker: a reward process, and what becomes of the samples that cost one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from forge_core.contracts.component import BuildContext, Component, Selection
from forge_core.contracts.errors import RunFailed
from forge_core.contracts.settings import Settings
from forge_core.processes.frames import dumps
from forge_core.processes.logs import tail
from forge_core.rewards.confinement import Confinement
from forge_core.rewards.frames import PackedSample
from forge_core.rewards.process import DeadlinePassed, ProcessLost, Result, RewardProcess

HOPELESS = 32
"""A part that hangs or crashes on that many samples, and has judged none, fails the run at once;
each costs a deadline or two processes."""

Unit = tuple[str, int]
"""Part and index of the sample: one call of one reward."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of the units that a judge was given.

    Args:
        results: in the order of the units; fewer than those when a part is hopeless.
        lost: samples that passed their deadline or took two processes down, by part.
        retried: part and cause, for each sample that was tried once more.
    """

    results: list[Result] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    retried: list[tuple[str, str]] = field(default_factory=list)


class JudgeSettings(Settings):
    """What a judge is given by its pool."""

    opening: bytes = Field(description="pickled parts and context, for the reward process")
    deadlines: Mapping[str, float] = Field(description="part -> seconds a sample may take")
    log: Path | None = Field(description="file for what rewards print; null: our stderr")
    confinement: Confinement = Field(description="environment and limits of the process")


class Judge:
    """Judges units in a process that it starts with the first call, keeps, and kills.

    A sample that passes its deadline costs the process, and itself its reward. One whose process
    dies is tried once more in a fresh one: something else may have killed it.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._process: RewardProcess | None = None
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forge-rewards")
        self._closed = False

    async def judge(self, samples: Mapping[int, PackedSample], units: Sequence[Unit]) -> Verdicts:
        """Call a reward for each unit, with as many processes, one after the other, as it takes.

        Args:
            samples: those that the units speak of, by index.
            units: what to judge, in order.

        Raises:
            ForgeError: a reward cannot be built.
            RunFailed: no process comes up, or the judge was closed.
        """
        verdicts = Verdicts()
        results = verdicts.results
        suspect = -1  # the unit whose process has died once
        async with self._turn:
            while len(results) < len(units):
                try:
                    await self._attempt(samples, units[len(results) :], results)
                except ProcessLost as loss:
                    part, _ = units[len(results)]
                    if isinstance(loss, DeadlinePassed) or suspect == len(results):
                        results.append(str(loss))
                        verdicts.lost[part] += 1
                        judged = sum(name == part for name, _ in units[: len(results)])
                        if hopeless(verdicts.lost[part], judged):
                            break
                    else:
                        suspect = len(results)
                        verdicts.retried.append((part, str(loss)))
        return verdicts

    async def close(self) -> None:
        """Kill the process and what it started. Safe to call twice, and while judging."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        async with self._turn:
            self._discard()
        self._thread.shutdown(wait=False)

    async def _attempt(
        self, samples: Mapping[int, PackedSample], units: Sequence[Unit], results: list[Result]
    ) -> None:
        """Judge the units with one process; given up when this ends by an exception.

        Raises:
            ProcessLost: over the unit after those whose results there are.
        """
        batch = dumps(({index: samples[index] for _, index in units}, units))
        deadlines = [self._settings.deadlines[part] for part, _ in units]
        try:
            process = await self._ready()
            await self._in_thread(process, process.score, batch, deadlines, results)
        except BaseException as error:
            self._discard()
            if self._closed and isinstance(error, ProcessLost):
                raise RunFailed("the reward pool was closed while it judged") from None
            raise

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
            future.exception()  # seen: nobody waits for it
            raise


def judges(settings: JudgeSettings) -> Selection[Judge]:
    """The component that a service of judges has."""
    return Selection(family="reward", component=JUDGE, settings=settings)


def build_judge(settings: JudgeSettings, context: BuildContext) -> Judge:
    return Judge(settings)


def hopeless(lost: int, judged: int) -> bool:
    """Whether many samples of a part were lost, and all that were judged."""
    return lost == judged >= HOPELESS


JUDGE: Component[Judge] = Component(
    name="worker",
    settings=JudgeSettings,
    build=build_judge,
    summary="judges samples in a process that can be killed",
)
