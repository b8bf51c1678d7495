"""The suites for rewards, environments and datasets catch each way of being wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forge_core import BuildContext, Component, Message, RewardSample, Selection, Settings, Task
from forge_core.testing.conformance.dataset import DatasetConformance
from forge_core.testing.conformance.environment import EnvironmentConformance
from forge_core.testing.conformance.reward import RewardConformance
from forge_core.testing.context import bare_context


class Nothing(Settings):
    """Nothing to set."""


def selected(family: str, made: Callable[[], Any]) -> Selection[Any]:
    def build(settings: Nothing, context: BuildContext) -> Any:
        return made()

    component = Component(name="mine", settings=Nothing, build=build, summary="under test")
    return Selection(family=family, component=component, settings=Nothing())


# Rewards.


def short(sample: RewardSample) -> float:
    return float(len(sample.completion) < 5)


class TestShort(RewardConformance):
    """A plain function is a reward too."""

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
samples = [RewardSample(task, "?", completion) for completion in ("1", "2", "")]


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

    async def respond(self, completion: str) -> str | None:
        self.steps += 1
        if completion == "stop":
            return None
        return f"step {self.steps} of {self.number}: {completion[:5]}"


class Walk:
    """Goes on until the policy says stop."""

    max_turns = 12

    def start(self, task: Task, seed: int) -> Interaction:
        return Interaction(self, (Message("user", f"Walk {seed}."),), seed % 7)


class TestWalk(EnvironmentConformance):
    replies = ("left", "right", "stop")

    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return selected("environment", Walk)


class Unseeded(Walk):
    numbers = itertools.count()

    def start(self, task: Task, seed: int) -> Interaction:
        return Interaction(self, "Walk.", next(self.numbers))


class Shared(Walk):
    """All episodes walk in one place."""

    def __init__(self) -> None:
        self.one: dict[tuple[str, int], list[str]] = {}

    def start(self, task: Task, seed: int) -> Interaction:
        said = self.one[task.id, seed] = []

        class Together(Interaction):
            async def respond(self, completion: str) -> str | None:
                place = self.environment.one[task.id, seed]  # type: ignore[attr-defined]
                place.append(completion)
                return f"{len(place)} of {len(said)}"

        return Together(self, "Walk.", 0)


class Answers(Walk):
    """Says a number where text is wanted."""

    def start(self, task: Task, seed: int) -> Interaction:
        class Numbers(Interaction):
            async def respond(self, completion: str) -> str | None:
                return 5  # type: ignore[return-value]

        return Numbers(self, "Walk.", 0)


class Says(Walk):
    def __init__(self, prompt: Any) -> None:
        self.prompt = prompt

    def start(self, task: Task, seed: int) -> Interaction:
        return Interaction(self, self.prompt, 0)


environments = EnvironmentConformance()
tasks = [Task("t", "?")]


async def test_an_environment_without_seed_is_caught() -> None:
    with pytest.raises(AssertionError, match="two courses"):
        await environments.test_task_and_seed_decide_everything(Unseeded(), tasks)


async def test_episodes_that_share_a_state_are_caught() -> None:
    await environments.test_task_and_seed_decide_everything(Shared(), tasks)
    with pytest.raises(AssertionError, match="another episode changed this one"):
        await environments.test_episodes_do_not_touch_each_other(Shared(), tasks)


async def test_an_answer_that_is_no_text_is_caught() -> None:
    with pytest.raises(AssertionError, match="neither text nor None"):
        await environments.test_an_answer_is_text_or_the_end(Answers(), tasks)


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
def test_a_prompt_that_is_none_is_caught(prompt: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        environments.test_prompts_are_text_or_messages(Says(prompt), tasks)
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


def test_an_id_that_occurs_twice_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"occur twice: \['a'\]"):
        datasets.test_ids_are_unique([Task("a", "?"), Task("b", "?"), Task("a", "!")], range(3))


def test_an_empty_dataset_is_caught() -> None:
    with pytest.raises(AssertionError):
        datasets.test_it_is_not_empty([])
