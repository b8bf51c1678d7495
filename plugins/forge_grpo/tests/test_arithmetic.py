"""Dataset ``arithmetic``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from forge_core import DataError, Dataset, Forge, Selection
from forge_grpo import plugin
from forge_grpo.datasets.arithmetic import TEST_SHARE, Arithmetic, is_test
from forge_grpo.settings import ArithmeticSettings
from forge_testing.conformance.dataset import DatasetConformance


class TestArithmetic(DatasetConformance):
    @pytest.fixture(
        params=[
            {},
            {"split": "test"},
            {"size": 50},
            {"operations": ["+", "-", "*"], "low": 0, "high": 12, "template": "{a} {op} {b} = "},
            {"low": 0, "high": 99, "forgotten_carry": 0.5},
        ],
        ids=str,
    )
    def selection(
        self, request: pytest.FixtureRequest, forge_app: Callable[..., Forge]
    ) -> Selection[Dataset]:
        component = forge_app(plugin).plugins.catalog.get("dataset", "arithmetic")
        settings = component.settings.model_validate(request.param)
        return Selection(family="dataset", component=component, settings=settings)


@st.composite
def settings(draw: st.DrawFn, split: str) -> ArithmeticSettings:
    """Any settings of a split that holds something."""
    operations = draw(st.lists(st.sampled_from("+-*"), min_size=1, max_size=3, unique=True))
    low = draw(st.integers(0, 60))
    high = low + draw(st.integers(7, 20))
    # One operation of few operands may have no test problem at all.
    operands = range(low, high + 1)
    every = ((a, op, b) for op in operations for a in operands for b in operands)
    assume(any(is_test(*problem) == (split == "test") for problem in every))
    return ArithmeticSettings.model_validate(
        {
            "operations": operations,
            "low": low,
            "high": high,
            "split": split,
            "size": draw(st.none() | st.just(1)),
            "forgotten_carry": draw(st.floats(0, 1)),
            "template": draw(st.sampled_from(["{a}{op}{b}=", "What is {a} {op} {b}?"])),
        }
    )


def problems(dataset: Arithmetic) -> set[tuple[frozenset[str], str]]:
    """Operands without their order, and operation."""
    found = set()
    for index in range(len(dataset)):
        name = dataset[index].id
        op = next(character for character in name if character in "+-*")
        found.add((frozenset(name.split(op)), op))
    return found


@given(train=settings("train"), test=settings("test"))
def test_no_test_problem_is_ever_trained(
    train: ArithmeticSettings, test: ArithmeticSettings
) -> None:
    assert problems(Arithmetic(train)).isdisjoint(problems(Arithmetic(test)))


def test_twins_are_on_the_same_side() -> None:
    for a, b in product(range(40), repeat=2):
        for op in "+-*":
            assert is_test(a, op, b) == is_test(b, op, a)


def test_train_and_test_are_all_there_is() -> None:
    train, test = (
        Arithmetic(ArithmeticSettings.model_validate({"split": split}))
        for split in ("train", "test")
    )
    ids = [data[index].id for data in (train, test) for index in range(len(data))]
    assert sorted(ids) == sorted(f"{a}+{b}" for a in range(10, 100) for b in range(10, 100))
    assert len(test) / len(ids) == pytest.approx(TEST_SHARE, abs=0.01)


def test_answers_are_right() -> None:
    everything: dict[str, Any] = {"operations": ["+", "-", "*"], "low": 0, "high": 15}
    data = Arithmetic(ArithmeticSettings.model_validate({**everything, "forgotten_carry": 1.0}))
    for index in range(len(data)):
        task = data[index]
        assert isinstance(task.prompt, str)
        assert task.prompt == task.id + "="
        assert task.answer == str(eval(task.id))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_carries_is_forgotten_in_responses_alone(share: float) -> None:
    data = Arithmetic(ArithmeticSettings(forgotten_carry=share))
    carrying = forgotten = 0
    for index in range(len(data)):
        task = data[index]
        assert task.answer is not None
        assert task.response is not None
        a, b = map(int, task.id.split("+"))
        carries = a % 10 + b % 10 >= 10
        carrying += carries
        if task.response != task.answer:
            forgotten += 1
            assert carries
            assert int(task.response) == int(task.answer) - 10
    assert forgotten / carrying == pytest.approx(share, abs=0.02 if 0 < share < 1 else 0)


def test_size_takes_some_of_the_split() -> None:
    everything = {
        data[i].id for data in [Arithmetic(ArithmeticSettings())] for i in range(len(data))
    }
    some = Arithmetic(ArithmeticSettings(size=100))
    ids = {some[index].id for index in range(len(some))}
    assert len(some) == len(ids) == 100
    assert ids < everything
    assert len({name.split("+")[0] for name in ids}) > 30  # from all over


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": 5, "high": 5, "split": "test"}, "1 test problems are wanted"),
        (
            {"low": 0, "high": 3, "size": 17},
            "17 train problems are wanted, and operands from 0 to 3",
        ),
    ],
)
def test_too_few_problems_are_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Arithmetic(ArithmeticSettings.model_validate(changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": 10, "high": 9}, r"high \(9\) is below low \(10\)"),
        ({"low": -1}, "low"),
        ({"operations": []}, "operations"),
        ({"operations": ["+", "+"]}, "names one twice"),
        ({"operations": ["/"]}, "operations"),
        ({"low": 0, "high": 5000}, "more than 3000000"),
        ({"template": "{a}{c}{b}"}, "takes a, op and b, not 'c'"),
        ({"template": "{}{}"}, "takes a, op and b, not ''"),
        ({"template": "{a"}, "template"),
        ({"template": "{a:%%}{b}"}, "template"),
        ({"template": "{a}+="}, "leaves out 'b'"),
        ({"template": "{a} and {b}", "operations": ["+", "-"]}, "leaves out 'op'"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ArithmeticSettings.model_validate(changes)


def test_one_operation_needs_no_sign_in_the_template() -> None:
    data = Arithmetic(ArithmeticSettings(template="{a} plus {b} is "))
    assert data[0].prompt == data[0].id.replace("+", " plus ") + " is "
