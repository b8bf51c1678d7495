"""Group-relative advantages."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_core import AdvantageEstimator, Selection
from forge_grpo.advantages import EPSILON, GroupMean, scale_advantages
from forge_grpo.plugin import forge_advantages
from forge_testing.conformance.advantage import AdvantageConformance

Scale = Literal["std", "none"]
SCALES = ("std", "none")
rewards_of_order_one = st.lists(
    st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=32
)


class TestGroupMean(AdvantageConformance):
    @pytest.fixture
    def selection(self) -> Selection[AdvantageEstimator]:
        (component,) = forge_advantages()
        settings = component.settings()
        return Selection(family="advantage", component=component, settings=settings)


def group_advantages(rewards: list[float], *, scale: Scale = "std") -> list[float]:
    """Of estimator ``group_mean``, as recipe ``grpo`` trains on them."""
    return scale_advantages(GroupMean()(rewards), rewards, scale)


@pytest.mark.parametrize("scale", SCALES)
@given(rewards=rewards_of_order_one)
def test_they_sum_to_nothing(scale: Scale, rewards: list[float]) -> None:
    assert sum(group_advantages(rewards, scale=scale)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@given(rewards=rewards_of_order_one)
def test_they_keep_the_order_of_rewards(scale: Scale, rewards: list[float]) -> None:
    advantages = group_advantages(rewards, scale=scale)
    for reward, advantage in zip(rewards, advantages, strict=True):
        for other, its in zip(rewards, advantages, strict=True):
            assert (reward < other) == (advantage < its)


@pytest.mark.parametrize("scale", SCALES)
@given(
    reward=st.floats(-1e300, 1e300),
    size=st.integers(min_value=1, max_value=64),
)
def test_equal_rewards_give_exactly_nothing(scale: Scale, reward: float, size: int) -> None:
    assert group_advantages([reward] * size, scale=scale) == [0.0] * size


@given(rewards=rewards_of_order_one, factor=st.floats(0.5, 100), shift=st.floats(-100, 100))
def test_std_does_not_depend_on_the_scale_of_rewards(
    rewards: list[float], factor: float, shift: float
) -> None:
    plain = group_advantages(rewards)
    scaled = group_advantages([factor * reward + shift for reward in rewards])
    # Epsilon is what is left of the scale: an advantage shrinks by epsilon / std.
    smallest = min(1.0, factor) * stdev(rewards)
    if smallest > 0:
        slack = max(map(abs, plain)) * 2 * EPSILON / smallest + 1e-9
        assert scaled == pytest.approx(plain, abs=slack)


@given(rewards=rewards_of_order_one, factor=st.floats(0.5, 100))
def test_none_keeps_the_scale_of_rewards(rewards: list[float], factor: float) -> None:
    plain = group_advantages(rewards, scale="none")
    scaled = group_advantages([factor * reward for reward in rewards], scale="none")
    assert scaled == pytest.approx([factor * advantage for advantage in plain], abs=1e-9)


def test_by_hand() -> None:
    # mean 0.25, sample standard deviation 0.5
    assert group_advantages([1, 0, 0, 0]) == pytest.approx(
        [0.75 / (0.5 + EPSILON), *[-0.25 / (0.5 + EPSILON)] * 3]
    )
    assert group_advantages([1, 0, 0, 0], scale="none") == [0.75, -0.25, -0.25, -0.25]
    assert group_advantages([1]) == [0]


def test_std_makes_unit_variance() -> None:
    advantages = group_advantages([0.0, 1.0, 0.5, 1.0, 0.0, 0.2])
    assert fmean(advantages) == pytest.approx(0)
    assert math.isclose(stdev(advantages), 1.0, rel_tol=1e-3)


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_that_are_equal_but_for_rounding_give_exactly_nothing(scale: Scale) -> None:
    assert group_advantages([0.1 + 0.2, 0.3, 0.3], scale=scale) == [0.0] * 3
    assert group_advantages([0.1 + 0.2 - 0.3, 0.0], scale=scale) == [0.0] * 2
    assert group_advantages([1e6 + 1e-4, 1e6], scale=scale) == [0.0] * 2
    assert all(group_advantages([0.001, 0.002], scale=scale))


@pytest.mark.parametrize("scale", SCALES)
def test_an_estimator_may_find_something_in_equal_rewards(scale: Scale) -> None:
    """They have no deviation, so that nothing is divided by 0 + epsilon."""
    assert scale_advantages([0.5, 0.5], [1.0, 1.0], scale) == [0.5, 0.5]
    assert scale_advantages([0.5], [1.0], scale) == [0.5]
