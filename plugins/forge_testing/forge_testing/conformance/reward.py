"""What every reward must do. Inherit it, and say which reward with the ``selection`` fixture.

.. code-block:: python

    class TestMine(RewardConformance):
        @pytest.fixture
        def selection(self):
            return Selection(family="reward", component=MINE, settings=MineSettings())

The reward may judge a sample, samples or a group, and be ``async``: one that judges samples or a
group gets all of a test's samples in one call. Rewards are called in this process where they must
be pure, and through the kernel's reward pool, with its deadline, where they may hang.
"""

from __future__ import annotations

import asyncio
import copy
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import cloudpickle
import pytest

from forge_core import (
    AnyReward,
    BuildContext,
    Completion,
    Episode,
    Message,
    RewardPart,
    RewardResult,
    RewardSample,
    Selection,
    Task,
    Turn,
)
from forge_core.contracts.built import is_async, reward_takes
from forge_local.processes.descendants import adopt_orphans, descendants
from forge_rewards.pool import RewardPool
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context

NASTY = (
    "",
    " \n\t\r ",
    "\x00",
    "naïve 数学 ٣ ½ 🙂 \u202e \ud83d",
    "9**9**9",
    r"\boxed{9^{9^{9^{9}}}}",
    r"$\int_0^\infty e^{-x^{x^{x}}} \sin(x!) dx$",
    "(" * 2000,
    "(" * 300 + "1" + ")" * 300,
    r"\frac{1}{" * 200,
    "$" * 1001,
    "1" * 20_000,
    "-" * 20_000,
    "the answer is " * 5_000,
    "a b " * 50_000,
    "<think>" * 2_000,
)
"""Completions that policies do come up with, and that rewards hang or crash on."""


class RewardConformance(Suite):
    """Inherit with a ``selection`` fixture; override ``task`` and ``completions`` for your kind."""

    lowest: ClassVar[float] = 0.0
    """No reward is below."""

    highest: ClassVar[float] = 1.0
    """No reward is above."""

    deadline: ClassVar[float] = 5.0
    """Seconds that one sample may take."""

    is_killed: ClassVar[str] = ""
    """Why this reward may pass its deadline on a nasty completion and be killed by the pool (it
    rests on a library that cannot be interrupted, say). Such a reward costs that episode its
    reward and everybody the time."""

    @pytest.fixture
    def selection(self) -> Selection[AnyReward]:
        """The reward under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def context(self) -> BuildContext:
        """What it is built with."""
        return bare_context()

    @pytest.fixture
    def reward(self, selection: Selection[AnyReward], context: BuildContext) -> AnyReward:
        return built(selection, context)

    @pytest.fixture
    def task(self) -> Task:
        """What the completions answer."""
        return Task("conformance", "What is 1 + 1?", answer="2", metadata={"notes": ["none"]})

    @pytest.fixture
    def completions(self) -> Sequence[str]:
        """Ordinary completions, right and wrong: the reward judges each, and none fails."""
        return ["2", " 2\n", "3", "", "The answer is 2.", "<think>1 + 1</think>2"]

    @pytest.fixture
    def samples(self, task: Task, completions: Sequence[str]) -> list[RewardSample]:
        return [_sample(task, completion) for completion in completions]

    def test_rewards_are_numbers_in_their_range(
        self, reward: AnyReward, samples: Sequence[RewardSample]
    ) -> None:
        for sample, value in zip(samples, _judged(reward, samples), strict=True):
            self._check(value, sample.completion)

    def test_an_empty_completion_is_not_the_best(
        self, reward: AnyReward, task: Task, samples: Sequence[RewardSample]
    ) -> None:
        """Or the policy learns to end at once."""
        *rewards, empty = _judged(reward, [*samples, _sample(task, "")])
        assert empty < max(rewards) or max(rewards) == min(rewards), (
            f"an empty completion gets {empty:g}, and no ordinary one more"
        )

    def test_the_same_sample_gets_the_same_reward(
        self, reward: AnyReward, samples: Sequence[RewardSample]
    ) -> None:
        first = _judged(reward, samples)
        assert _judged(reward, samples[::-1]) == first[::-1]

    def test_another_instance_judges_alike(
        self,
        reward: AnyReward,
        selection: Selection[AnyReward],
        context: BuildContext,
        samples: Sequence[RewardSample],
    ) -> None:
        other = selection.build(context)
        assert _judged(other, samples[::-1]) == _judged(reward, samples)[::-1]

    def test_samples_are_left_as_they_were(
        self, reward: AnyReward, samples: Sequence[RewardSample]
    ) -> None:
        kept = copy.deepcopy(samples)
        _judged(reward, samples)
        assert samples == kept

    def test_it_can_be_pickled(
        self, reward: AnyReward, selection: Selection[AnyReward], samples: Sequence[RewardSample]
    ) -> None:
        assert cloudpickle.loads(cloudpickle.dumps(selection)).settings == selection.settings
        copied = cloudpickle.loads(cloudpickle.dumps(reward))
        again = cloudpickle.loads(cloudpickle.dumps(samples))
        assert _judged(copied, again) == _judged(reward, samples)

    def test_processes_do_not_pile_up(
        self, reward: AnyReward, samples: Sequence[RewardSample]
    ) -> None:
        """What judging a sample starts has ended with it; a process kept for all of them may stay.

        Sandboxes leave processes behind that are no children any more (``timeout``, ``setsid``).
        """
        adopt_orphans()
        try:
            _judged(reward, samples)
            before = set(descendants(os.getpid()))
            _judged(reward, samples)
            limit = time.monotonic() + 1.0
            while (left := set(descendants(os.getpid())) - before) and time.monotonic() < limit:
                time.sleep(0.05)
        finally:
            adopt_orphans(False)
        assert not left, f"{len(samples)} samples leave {len(left)} processes that go on running"

    async def test_a_process_of_its_own_judges_alike(
        self,
        reward: AnyReward,
        selection: Selection[AnyReward],
        context: BuildContext,
        task: Task,
        completions: Sequence[str],
    ) -> None:
        episodes, _ = await self._in_pool(selection, context, task, completions)
        assert [episode.failures for episode in episodes] == [{}] * len(episodes)
        samples = [_sample(task, completion) for completion in completions]
        expected = await asyncio.to_thread(_judged, reward, samples)
        assert [episode.reward for episode in episodes] == expected

    async def test_nothing_makes_it_hang(
        self,
        selection: Selection[AnyReward],
        context: BuildContext,
        task: Task,
        completions: Sequence[str],
    ) -> None:
        # An ordinary completion first: a part that only fails ends the run, as it should.
        said = [completions[0], *NASTY]
        episodes, lost = await self._in_pool(selection, context, task, said)
        for completion, episode in zip(said, episodes, strict=True):
            if not episode.failures:
                self._check(episode.reward, completion)
        assert not episodes[0].failures
        assert lost == 0 or self.is_killed, (
            f"{lost} completions took the process down or past {self.deadline:g} s: "
            + "; ".join(
                f"{completion[:20]!r} {cause}"
                for completion, episode in zip(said, episodes, strict=True)
                for cause in episode.failures.values()
            )
        )

    def _check(self, number: float, completion: str) -> None:
        assert math.isfinite(number), f"{completion[:40]!r} gets {number}"
        assert self.lowest <= number <= self.highest, (
            f"{completion[:40]!r} gets {number}, outside {self.lowest} to {self.highest}"
        )

    async def _in_pool(
        self,
        selection: Selection[AnyReward],
        context: BuildContext,
        task: Task,
        completions: Sequence[str],
    ) -> tuple[list[Episode], float]:
        """Judged episodes, and how many of them were lost with their process."""
        episodes = [_episode(task, completion) for completion in completions]
        part = RewardPart(selection=selection, deadline=self.deadline)
        pool = RewardPool({"part": part}, context)
        try:
            await pool.score(episodes)
            return episodes, pool.metrics()["lost"]
        finally:
            await pool.close()


def _judged(reward: AnyReward, samples: Sequence[RewardSample]) -> list[float]:
    """The rewards of samples: one by one, or all in one call, as the reward takes them."""
    call: Callable[[Any], Any] = reward
    alone = reward_takes(reward) == "sample"
    arguments = [*samples] if alone else [samples]

    async def awaited() -> list[Any]:
        return list(await asyncio.gather(*map(call, arguments)))

    answers = asyncio.run(awaited()) if is_async(reward) else [call(each) for each in arguments]
    rewards = answers if alone else list(answers[0])
    assert len(rewards) == len(samples), f"{len(rewards)} rewards for {len(samples)} samples"
    return [float(each.value if isinstance(each, RewardResult) else each) for each in rewards]


def _sample(task: Task, completion: str) -> RewardSample:
    return RewardSample(
        task=task,
        prompt=str(task.prompt),
        completion=completion,
        completions=(completion,),
        completion_length=len(completion) + 1,
        messages=_conversation(task, completion),
    )


def _episode(task: Task, completion: str) -> Episode:
    length = len(completion) + 1
    sampled = Completion([0] * length, [-1.0] * length, [0] * length, "stop")
    turns = [Turn("prompt", [0]), Turn("completion", sampled.tokens, sampled)]
    said = list(_conversation(task, completion))
    return Episode(task, turns, str(task.prompt), [completion], messages=said)


def _conversation(task: Task, completion: str) -> tuple[Message, ...]:
    asked = (Message("user", task.prompt),) if isinstance(task.prompt, str) else task.prompt
    return (*asked, Message("assistant", completion))
