"""Rewards of a sample, of many and of a group, plain and async: all in real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import ClassVar

import pytest

from forge_core import (
    Episode,
    Message,
    PluginError,
    RewardComponent,
    RewardPart,
    RewardResult,
    RunFailed,
    Selection,
    Settings,
    Task,
)
from forge_testing.conformance.reward import RewardConformance
from forge_testing.context import bare_context


def length(sample):
    text = sample.completion
    return RewardResult(float(len(text)), {"words": len(text.split()), "upper": text.isupper()})


def centered(samples):
    mean = sum(len(sample.completion) for sample in samples) / len(samples)
    return [len(sample.completion) - mean for sample in samples]


def shortest(group):
    least = min(len(sample.completion) for sample in group)
    return [
        RewardResult(float(len(sample.completion) == least), {"size": len(group)})
        for sample in group
    ]


async def waits(sample):
    """``wait SECONDS`` waits, ``block`` blocks the loop, ``deaf`` ignores cancellation."""
    match sample.completion.split():
        case ["wait", seconds]:
            await asyncio.sleep(float(seconds))
        case ["block"]:
            time.sleep(60)
        case ["die"]:
            os._exit(3)
        case ["die-once", file]:
            if not Path(file).exists():
                Path(file).touch()
                os._exit(3)
        case ["raise"]:
            raise ConnectionError("429")
        case ["exit"]:
            raise SystemExit(2)
        case ["deaf"]:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
    return 1.0


def spoiled(group):
    answers = [1.0] * len(group)
    match group[0].completion:
        case "nan":
            answers[1] = float("nan")
        case "short":
            return answers[1:]
        case "text":
            return "11"
        case "number":
            return 1.0
        case "raise":
            raise ValueError("no group")
    return answers


class NoSettings(Settings):
    pass


def selected(reward):
    component = RewardComponent(
        name=reward.__name__, settings=NoSettings, build=lambda s, c: reward, summary="for tests"
    )
    return Selection(family="reward", component=component, settings=NoSettings())


def part(reward, **keys):
    return RewardPart(selection=selected(reward), **({"deadline": 30.0} | keys))


def group_of(task, *completions, group=""):
    asked = Message("user", task)
    return [
        Episode(
            Task(task, task),
            [],
            task,
            [completion],
            messages=[asked, Message("assistant", completion)],
            group=group,
        )
        for completion in completions
    ]


async def test_metrics_of_a_reward_are_kept_by_part(pool_of):
    episodes = group_of("a", "TWO WORDS", "one")
    await pool_of({"long": part(length)}).score(episodes)
    assert [episode.reward for episode in episodes] == [9.0, 3.0]
    assert [episode.metrics for episode in episodes] == [
        {"reward/long/words": 2.0, "reward/long/upper": 1.0},
        {"reward/long/words": 1.0, "reward/long/upper": 0.0},
    ]


async def test_a_batch_is_one_call_and_a_group_one_call_each(pool_of):
    episodes = [
        *group_of("a", "1", "123"),
        *group_of("b", "12345", "1234567"),
        *group_of("a", "12", group="again"),
    ]
    pool = pool_of({"centered": part(centered), "shortest": part(shortest)})
    await pool.score(episodes)
    lengths = [1, 3, 5, 7, 2]
    mean = sum(lengths) / len(lengths)
    assert [each.rewards["centered"] for each in episodes] == [n - mean for n in lengths]
    assert [each.rewards["shortest"] for each in episodes] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert [each.metrics["reward/shortest/size"] for each in episodes] == [2, 2, 2, 2, 1]
    assert pool.metrics()["calls"] == 10


async def test_several_workers_share_a_batch(pool_of):
    episodes = [each for n in range(8) for each in group_of(f"task {n}", "x", "yy")]
    await pool_of({"c": part(centered), "s": part(shortest)}, replicas=2).score(episodes)
    assert [each.rewards for each in episodes] == [{"c": -0.5, "s": 1.0}, {"c": 0.5, "s": 0.0}] * 8


@pytest.mark.parametrize(
    ("first", "causes"),
    [
        ("nan", [None, "ValueError: the reward returned nan"]),
        ("short", ["TypeError: the reward returned 1 rewards for 2 samples"] * 2),
        ("text", ["TypeError: the reward returned '11' for 2 samples"] * 2),
        ("number", ["TypeError: the reward returned 1.0 for 2 samples"] * 2),
        ("raise", ["ValueError: no group"] * 2),
    ],
)
async def test_what_a_group_reward_must_return(pool_of, first, causes):
    good, bad = group_of("a", "1", "2"), group_of("b", first, "2")
    await pool_of({"s": part(spoiled)}).score([*good, *bad])
    assert [each.failures for each in good] == [{}, {}]
    assert [each.failures.get("s") for each in bad] == causes


async def test_async_calls_wait_at_the_same_time(pool_of):
    pool = pool_of({"w": part(waits)})
    await pool.score(group_of("a", "1"))
    episodes = group_of("a", *["wait 1"] * 40)
    started = time.monotonic()
    await pool.score(episodes)
    assert time.monotonic() - started < 20.0
    assert [each.reward for each in episodes] == [1.0] * 40


async def test_concurrency_bounds_the_calls_under_way(pool_of):
    pool = pool_of({"w": part(waits, concurrency=2)})
    await pool.score(group_of("a", "1"))
    started = time.monotonic()
    await pool.score(group_of("a", *["wait 0.2"] * 8))
    assert time.monotonic() - started >= 0.8


async def test_an_async_call_fails_alone(pool_of, tmp_path):
    texts = ["1", "raise", "exit", "wait 60", f"die-once {tmp_path / 'died'}", "1"]
    episodes = [each for n, text in enumerate(texts) for each in group_of(str(n), text)]
    pool = pool_of({"w": part(waits, deadline=2.0)})
    await pool.score(episodes)
    assert [each.failures.get("w") for each in episodes] == [
        None,
        "ConnectionError: 429",
        "SystemExit: 2",
        "deadline of 2 s passed",
        None,
        None,
    ]
    assert pool.metrics()["lost"] == 1


@pytest.mark.parametrize("fault", ["block", "deaf", "die"])
async def test_the_call_at_fault_is_found_among_those_under_way(pool_of, fault):
    episodes = [each for n in range(4) for each in group_of(str(n), "wait 0.01")]
    episodes += group_of("bad", fault)
    pool = pool_of({"w": part(waits, deadline=1.0)})
    await pool.score(episodes)
    assert [bool(each.failures) for each in episodes] == [False] * 4 + [True]
    cause = "the process ended with exit code 3" if fault == "die" else "deadline of 1 s passed"
    assert episodes[-1].failures == {"w": cause}
    assert pool.metrics()["lost"] == 1


async def test_a_reward_sees_the_conversation(pool_of):
    def sees(sample):
        assert [each.role for each in sample.messages] == ["user", "assistant", "user", "assistant"]
        assert sample.messages[2].content == sample.observations[0] == "warmer"
        assert sample.messages[1].extra == {"tool_calls": [{"name": "look"}]}
        return 1.0

    asked, said = (
        Message("user", "guess"),
        Message("assistant", "3", {"tool_calls": [{"name": "look"}]}),
    )
    heard, last = Message("user", "warmer"), Message("assistant", "5")
    episode = Episode(
        Task("a", "guess"),
        [],
        "guess",
        ["3", "5"],
        messages=[asked, said, heard, last],
        observation_texts=["warmer"],
    )
    await pool_of({"s": part(sees)}).score([episode])
    assert episode.failures == {}


async def test_a_parameter_with_another_name_is_refused(pool_of):
    def mine(completion):
        return 1.0

    said = (
        "its first parameter is called 'completion'; it says what one call judges: sample (one "
        "RewardSample), samples (many) or group (all of one task's group)"
    )
    with pytest.raises(RunFailed) as caught:
        await pool_of({"m": part(mine)}).score(group_of("a", "1"))
    assert said in str(caught.value)
    chosen = selected(mine)
    named = Selection(
        family="reward", component=chosen.component, settings=NoSettings(), plugin="acme"
    )
    with pytest.raises(PluginError) as refused:
        named.build(bare_context())
    assert str(refused.value) == f"reward 'mine' (plugin acme): {said}"


class TestLength(RewardConformance):
    highest = 1e9

    @pytest.fixture
    def selection(self):
        return selected(length)


class TestCentered(RewardConformance):
    lowest, highest = -1e9, 1e9

    @pytest.fixture
    def selection(self):
        return selected(centered)


class TestShortest(RewardConformance):
    opt_out: ClassVar = {"test_an_empty_completion_is_not_the_best": "it pays for the shortest"}

    @pytest.fixture
    def selection(self):
        return selected(shortest)


class TestWaits(RewardConformance):
    @pytest.fixture
    def selection(self):
        return selected(waits)
