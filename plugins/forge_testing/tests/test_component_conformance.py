"""The suites for rewards, environments and datasets catch each way of being wrong."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from forge_core import (
    BuildContext,
    DatasetComponent,
    Message,
    PluginError,
    RewardComponent,
    RewardSample,
    Selection,
    Settings,
    Task,
)
from forge_testing.conformance.dataset import DatasetConformance
from forge_testing.conformance.environment import EnvironmentConformance
from forge_testing.conformance.reward import RewardConformance
from forge_testing.conformance.suite import built
from forge_testing.context import bare_context, component


class Nothing(Settings):
    """Nothing to set."""


def selected(family: str, made: Callable[[], Any]) -> Selection[Any]:
    def build(settings: Nothing, context: BuildContext) -> Any:
        return made()

    return Selection(family=family, component=component(family, build), settings=Nothing())


# Rewards.


def short(sample: RewardSample) -> float:
    return float(len(sample.completion) < 5)


class TestShort(RewardConformance):
    """A plain function is a reward too."""

    opt_out = {  # noqa: RUF012
        "test_an_empty_completion_is_not_the_best": "one part of a sum, that pays for brevity"
    }

    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return selected("reward", lambda: short)


class Counts:
    """Pays less each time."""

    def __init__(self) -> None:
        self.calls = itertools.count(1)

    def __call__(self, sample: RewardSample) -> float:
        return 1 / next(self.calls)


def writes(sample: RewardSample) -> float:
    sample.task.metadata["notes"].append("judged")
    return 0.0


def too_much(sample: RewardSample) -> float:
    return 2.0


def sleeps(sample: RewardSample) -> float:
    if len(sample.completion) > 100_000:
        time.sleep(60)
    return 0.0


class Unpicklable:
    def __init__(self) -> None:
        self.generator = (x for x in "ab")

    def __call__(self, sample: RewardSample) -> float:
        return 0.0


rewards = RewardConformance()
task = Task("t", "?", answer="2", metadata={"notes": []})
LONG = RewardSample(task, "?", "a long answer")
samples = [RewardSample(task, "?", completion) for completion in ("1", "2", "")]


def test_a_reward_for_nothing_is_caught() -> None:
    with pytest.raises(
        AssertionError, match="an empty completion gets 1, and no ordinary one more"
    ):
        rewards.test_an_empty_completion_is_not_the_best(short, task, [*samples[:2], LONG])


def test_a_reward_that_remembers_is_caught() -> None:
    with pytest.raises(AssertionError):
        rewards.test_the_same_sample_gets_the_same_reward(Counts(), samples)


def test_a_reward_that_writes_is_caught() -> None:
    with pytest.raises(AssertionError):
        rewards.test_samples_are_left_as_they_were(writes, samples)


def test_a_reward_out_of_its_range_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"'1' gets 2\.0, outside 0\.0 to 1\.0"):
        rewards.test_rewards_are_numbers_in_their_range(too_much, samples)


def test_a_reward_that_cannot_travel_is_caught() -> None:
    selection = selected("reward", Unpicklable)
    with pytest.raises(TypeError, match="pickle"):
        rewards.test_it_can_be_pickled(Unpicklable(), selection, samples)


def test_a_reward_whose_programs_go_on_is_caught() -> None:
    def leaks(sample: RewardSample) -> float:
        subprocess.run(["sh", "-c", "setsid sleep 5 &"], check=True)
        return 0.0

    with pytest.raises(AssertionError, match="3 samples leave 3 processes"):
        rewards.test_processes_do_not_pile_up(leaks, samples)


async def test_a_reward_that_hangs_is_caught() -> None:
    class Hasty(RewardConformance):
        deadline = 0.2

    with pytest.raises(AssertionError, match=r"past 0\.2 s"):
        await Hasty().test_nothing_makes_it_hang(
            selected("reward", lambda: sleeps), bare_context(), task, ["1"]
        )


# Environments.


class Interaction:
    def __init__(self, environment: Walk, prompt: str | tuple[Message, ...], number: int) -> None:
        self.environment, self.prompt, self.number = environment, prompt, number
        self.steps = 0

    async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
        self.steps += 1
        if completion == "stop":
            return None
        return f"step {self.steps} of {self.number}: {completion[:5]}"


class Walk:
    """Goes on until the policy says stop."""

    max_turns = 12

    async def start(self, task: Task, seed: int) -> Interaction:
        return Interaction(self, (Message("user", f"Walk {seed}."),), seed % 7)


class TestWalk(EnvironmentConformance):
    replies = ("left", "right", "stop")

    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return selected("environment", Walk)


class Unseeded(Walk):
    numbers = itertools.count()

    async def start(self, task: Task, seed: int) -> Interaction:
        return Interaction(self, "Walk.", next(self.numbers))


class Shared(Walk):
    """All episodes walk in one place."""

    def __init__(self) -> None:
        self.one: dict[tuple[str, int], list[str]] = {}

    async def start(self, task: Task, seed: int) -> Interaction:
        said = self.one[task.id, seed] = []

        class Together(Interaction):
            async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
                place = self.environment.one[task.id, seed]  # type: ignore[attr-defined]
                place.append(completion)
                return f"{len(place)} of {len(said)}"

        return Together(self, "Walk.", 0)


class Answers(Walk):
    """Says a number where text is wanted."""

    async def start(self, task: Task, seed: int) -> Interaction:
        class Numbers(Interaction):
            async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
                return 5  # type: ignore[return-value]

        return Numbers(self, "Walk.", 0)


class Says(Walk):
    def __init__(self, prompt: Any) -> None:
        self.prompt = prompt

    async def start(self, task: Task, seed: int) -> Interaction:
        return Interaction(self, self.prompt, 0)


environments = EnvironmentConformance()
tasks = [Task("t", "?")]


async def test_an_environment_without_seed_is_caught() -> None:
    with pytest.raises(AssertionError, match="two courses"):
        await environments.test_task_and_seed_decide_everything(Unseeded(), tasks)


async def test_a_prompt_that_tells_the_answer_is_caught() -> None:
    tells = Says("What is 6 * 7? (It is 42.)")
    await environments.test_prompts_do_not_tell_the_answer(tells, [Task("t", "?", answer="4")])
    with pytest.raises(AssertionError, match="the prompt has the answer '42' in it"):
        await environments.test_prompts_do_not_tell_the_answer(tells, [Task("t", "?", answer="42")])


async def test_an_environment_that_blocks_the_event_loop_is_caught() -> None:
    class Slow(Walk):
        async def start(self, task: Task, seed: int) -> Interaction:
            class Blocks(Interaction):
                async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
                    time.sleep(0.2)
                    return await super().respond(completion, finish_reason)

            return Blocks(self, "Walk.", 0)

    class Waits(Walk):
        async def start(self, task: Task, seed: int) -> Interaction:
            class Awaits(Interaction):
                async def respond(self, completion: str, finish_reason: str = "stop") -> str | None:
                    await asyncio.sleep(0.2)
                    return await super().respond(completion, finish_reason)

            return Awaits(self, "Walk.", 0)

    await environments.test_the_event_loop_goes_on(Waits(), tasks)
    with pytest.raises(AssertionError, match=r"keeps the event loop for \d"):
        await environments.test_the_event_loop_goes_on(Slow(), tasks)


async def test_episodes_that_share_a_state_are_caught() -> None:
    await environments.test_task_and_seed_decide_everything(Shared(), tasks)
    with pytest.raises(AssertionError, match="another episode changed this one"):
        await environments.test_episodes_do_not_touch_each_other(Shared(), tasks)


async def test_an_answer_that_is_no_text_is_caught() -> None:
    with pytest.raises(AssertionError, match="expected a Response, text or None"):
        await environments.test_an_answer_is_text_a_response_or_the_end(Answers(), tasks)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "is empty"),
        ([Message("user", "?")], "a text or a tuple"),
        ((), "has no message"),
        (({"role": "user", "content": "?"},), "is no Message"),
        ((Message("human", "?"),), "no role 'human'"),  # type: ignore[arg-type]
        ((Message("user", None),), "no text"),  # type: ignore[arg-type]
        ((Message("user", "?"), Message("assistant", "!")), "policy's own"),
    ],
)
async def test_a_prompt_that_is_none_is_caught(prompt: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        await environments.test_prompts_are_text_or_messages(Says(prompt), tasks)
    with pytest.raises(AssertionError, match=message):
        datasets.test_every_index_gives_a_task([Task("t", prompt)], [0])


# Datasets.


class TestList(DatasetConformance):
    """A plain list is a dataset too."""

    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return selected("dataset", lambda: [Task(str(i), f"{i}?", answer="1") for i in range(5000)])


datasets = DatasetConformance()
made = itertools.count()


class Fickle:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), f"{next(made)}?")


def test_a_dataset_that_changes_is_caught() -> None:
    with pytest.raises(AssertionError):
        datasets.test_an_item_is_always_the_same(Fickle(), range(3))


def test_a_dataset_that_differs_when_built_again_is_caught() -> None:
    def fresh() -> Sequence[Task]:
        return [Task("a", f"{next(made)}?")]

    with pytest.raises(AssertionError):
        datasets.test_built_twice_it_holds_the_same(
            selected("dataset", fresh), bare_context(), fresh(), [0]
        )


class Splits(Settings):
    """What is held out."""

    split: Literal["train", "test"] = "train"


@pytest.mark.parametrize("first_of_test", [80, 100])
def test_splits_that_share_a_task_are_caught(first_of_test: int) -> None:
    def build(settings: Splits, context: BuildContext) -> Sequence[Task]:
        numbers = range(100) if settings.split == "train" else range(first_of_test, 120)
        return [Task(f"{number}", f"{number}?") for number in numbers]

    splits = DatasetComponent(name="mine", settings=Splits, build=build, summary="under test")
    selection = Selection(family="dataset", component=splits, settings=Splits())
    arguments = (selection, bare_context(), selection.build(bare_context()))
    if first_of_test == 100:
        datasets.test_splits_share_no_task(*arguments)
        return
    with pytest.raises(AssertionError, match="item 0 of split 'test' is in 'train' too"):
        datasets.test_splits_share_no_task(*arguments)


def test_a_dataset_that_depends_on_hashes_is_caught() -> None:
    def split() -> Sequence[Task]:
        names = [f"{number}" for number in range(100)]
        return [Task(name, f"{name}?") for name in sorted(names, key=hash)]

    with pytest.raises(AssertionError, match=r"in one process and .* in another; hash"):
        datasets.test_every_process_sees_the_same(
            selected("dataset", split), bare_context(), range(100)
        )


def test_a_dataset_that_never_ends_is_caught() -> None:
    class Endless(Fickle):
        def __getitem__(self, index: int) -> Task:
            return Task(str(index % 3), "?")

    with pytest.raises(AssertionError, match=r"item 3 of 3 is Task.*; raise IndexError"):
        datasets.test_it_ends(Endless())


def test_an_id_that_occurs_twice_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"occur twice: \['a'\]"):
        datasets.test_ids_are_unique([Task("a", "?"), Task("b", "?"), Task("a", "!")], range(3))


def test_an_empty_dataset_is_caught() -> None:
    with pytest.raises(AssertionError):
        datasets.test_it_is_not_empty([])


# What is built.


def test_what_is_not_of_its_family_is_caught() -> None:
    class NotAsync(Walk):
        def start(self, task: Task, seed: int) -> Interaction:  # type: ignore[override]
            return Interaction(self, "Walk.", 0)

    for family, made, message in (
        ("reward", lambda: None, "reward 'mine': build returned None; expected an object with"),
        ("dataset", lambda: 5, "dataset 'mine': build returned 5"),
        ("environment", NotAsync, "environment 'mine': start must be a coroutine"),
    ):
        with pytest.raises(PluginError, match=message):
            built(selected(family, made), bare_context())


def test_a_build_that_names_nothing_is_caught() -> None:
    mine = RewardComponent(name="mine", settings=Nothing, build="json:no_reward", summary="")
    with pytest.raises(AttributeError, match="no_reward"):
        built(Selection(family="reward", component=mine, settings=Nothing()), bare_context())
