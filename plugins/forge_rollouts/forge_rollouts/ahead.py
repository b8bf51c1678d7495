"""The groups of a step, sampled while earlier steps were trained.

How far ahead: with ``d`` rollouts done and a bound of ``k`` versions, groups are sampled up to
rollout ``d + 1 + k`` and no further (AReaL, arXiv:2505.24298, section 5.1). A recipe publishes at
most one version after each, so each group is trained at most ``k`` versions after its first token
was sampled, and no work is thrown away. An evaluation in the middle of a rollout of several
optimizer steps publishes one more, and counts.

Which group is trained in which step is the run's order of tasks, whatever is finished first: the
order does not depend on time, and slow tasks are not crowded out by quick ones.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from forge_core import Group
from forge_rollouts.rollouts import Sampler, completion_tokens

if TYPE_CHECKING:
    from forge_core import ServiceHandle, Step
    from forge_rollouts.buffer import Taken


@asynccontextmanager
async def sampling_ahead(sampler: Sampler, max_staleness: int) -> AsyncIterator[Ahead]:
    """Sample ahead of the steps inside the block; what is under way when it ends is cancelled.

    A failure of what is sampled ahead ends the block at once, and is raised as itself.
    """
    buffer = await sampler.stage.replay_buffer(max_staleness)
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            yield Ahead(sampler, max_staleness, buffer, await buffer.places.route(), tasks)
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]  # the others are its consequences
    if failure is not None:
        raise failure


class Ahead:
    """Gives each rollout its groups and samples those of the next ones meanwhile.

    Each group is a task of its own: sampled, judged, put into the replay buffer at the
    place that its task has in the run's order.

    Args:
        sampler: samples a group.
        max_staleness: most versions a trained token may lie behind.
        buffer: the replay buffer's service.
        held: places of the groups that it holds already, from a checkpoint.
        tasks: what the groups are made in.
    """

    def __init__(
        self,
        sampler: Sampler,
        max_staleness: int,
        buffer: ServiceHandle,
        held: list[int],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._sampler = sampler
        self._stage = sampler.stage
        self._max_staleness = max_staleness
        self._buffer = buffer
        self._tasks = tasks
        self._held = set(held)
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._since = time.perf_counter()

    async def groups(self, step: Step) -> dict[int, Group]:
        """The groups of the rollout that a step begins, judged, by place."""
        per_step = self._sampler.options.groups
        first = self._stage.position
        wanted = range(first, first + per_step)
        groups: dict[int, Group] = {}
        dropped = 0
        with step.timed("wait"):
            while len(groups) < len(wanted):
                missing = [place for place in wanted if place not in groups]
                self._start([*missing, *self._later(step, wanted)])
                await self._wait_for(missing, step)
                taken: Taken = await self._buffer.take.route(wanted.stop, self._stage.version)
                self._held = {place for place in self._held if place >= wanted.stop}
                groups.update(taken.groups)
                dropped += len(taken.dropped)
                if len(groups) + len(taken.dropped) < len(wanted):
                    await self._forget_lost()
                refused = sum(not group.episodes for group in groups.values())
                self._sampler.check_refused(refused, answered=len(groups) - refused)
                wanted = range(first, first + per_step + refused)
        self._stage.advance(len(wanted))
        answered = {place: groups[place] for place in wanted if groups[place].episodes}
        step.record({"groups/dropped": dropped, "prompts/dropped": refused})
        self._time(step, list(answered.values()))
        return answered

    def _later(self, step: Step, wanted: range) -> range:
        """Places of the rollouts after this one that may be sampled by now."""
        options = self._sampler.options
        this, all_of_them = (
            math.ceil(steps / options.optimizer_steps)
            for steps in (step.number, self._stage.total_steps)
        )
        count = 0
        while (
            count < all_of_them - this
            and self._versions(step.number, this + count) <= self._max_staleness
        ):
            count += 1
        return range(wanted.stop, wanted.stop + count * options.groups)

    def _versions(self, first: int, rollout: int) -> int:
        """Most versions that are published from a step on, up to the end of a rollout: one after
        each rollout, and one for each evaluation in the middle of one."""
        each, config = self._sampler.options.optimizer_steps, self._stage.config
        interval = config.evaluation.interval if config.evaluates() else None
        evaluated = range(first, rollout * each)
        within = sum(step % interval == 0 and step % each != 0 for step in evaluated if interval)
        return rollout - math.ceil(first / each) + 1 + within

    def _start(self, places: list[int]) -> None:
        """Begin with those groups that are neither there nor under way."""
        for place in places:
            if place not in self._held and place not in self._in_flight:
                self._in_flight[place] = self._tasks.create_task(self._sample_one(place))

    async def _sample_one(self, place: int) -> None:
        try:
            task = self._stage.task_at(place)
            group = await self._sampler.sample(task, place)
            while _was_cancelled(group):
                group = await self._sampler.sample(task, place)
            await self._stage.score(group.episodes)
            await self._buffer.add.route(place, group)
            self._held.add(place)
        finally:
            del self._in_flight[place]

    async def _wait_for(self, places: list[int], step: Step) -> None:
        """Wait until those of the groups that are under way are in the buffer."""
        under_way = [self._in_flight[place] for place in places if place in self._in_flight]
        if under_way:
            with self._stage.waiting(f"groups of step {step.run_number}"):
                await asyncio.wait(under_way)

    async def _forget_lost(self) -> None:
        """Groups went down with the buffer's process: what it no longer has is made again."""
        before = frozenset(self._held)
        self._held -= before.difference(await self._buffer.places.route())
        self._stage.warn(
            "groups were lost with the replay buffer's process; they are sampled again"
        )

    def _time(self, step: Step, groups: list[Group]) -> None:
        """Sampling has no time of its own here: its rate is over all the time since the last step's
        groups."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        step.timing["generated_tokens_per_second"] = completion_tokens(groups) / seconds


def _was_cancelled(group: Group) -> bool:
    """Whether a completion was given up half-way: some engines do when their weights change."""
    return any(
        turn.completion is not None and turn.completion.finish_reason == "cancelled"
        for episode in group.episodes
        for turn in episode.turns
    )
