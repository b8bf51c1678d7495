"""What every advantage estimator does.

Inherit it, and say which estimator with the ``selection`` fixture.

.. code-block:: python

    class TestMine(AdvantageConformance):
        @pytest.fixture
        def selection(self):
            (component,) = forge_advantages()
            settings = component.settings()
            return Selection(family="advantage", component=component, settings=settings)
"""

from __future__ import annotations

import itertools
import math
import random

import pytest

from forge_core import AdvantageEstimator, Selection
from forge_testing.conformance.suite import Suite
from forge_testing.context import bare_context

GROUPS = (
    [1.0],
    [0.0, 1.0],
    [0.0, 0.0, 1.0, 0.0],
    [0.5, -2.0, 3.0, 0.25, 0.5, 1e-3],
    [1e6, 1e6 + 1, 1e6 - 1],
    [1.0] * 7 + [0.0],
)
"""Rewards of groups; of one episode where the others were left out."""


class AdvantageConformance(Suite):
    """Inherit with a ``selection`` fixture. Needs no torch."""

    @pytest.fixture
    def selection(self) -> Selection[AdvantageEstimator]:
        """The estimator under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def estimate(self, selection: Selection[AdvantageEstimator]) -> AdvantageEstimator:
        return selection.build(bare_context())

    @pytest.mark.parametrize("rewards", GROUPS)
    def test_a_finite_number_for_each_episode(
        self, estimate: AdvantageEstimator, rewards: list[float]
    ) -> None:
        advantages = estimate(list(rewards))
        assert len(advantages) == len(rewards)
        assert all(math.isfinite(each) for each in advantages)

    @pytest.mark.parametrize("reward", [0.0, 1.0, -3.5, 0.1 + 0.2])
    @pytest.mark.parametrize("size", [1, 2, 8])
    def test_equal_rewards_give_equal_and_finite_advantages(
        self, estimate: AdvantageEstimator, reward: float, size: int
    ) -> None:
        advantages = [float(each) for each in estimate([reward] * size)]
        assert all(math.isfinite(each) for each in advantages)
        assert max(advantages) == pytest.approx(min(advantages), abs=1e-9)

    @pytest.mark.parametrize("rewards", GROUPS)
    def test_each_keeps_its_advantage_in_another_order(
        self, estimate: AdvantageEstimator, rewards: list[float]
    ) -> None:
        expected = [float(each) for each in estimate(list(rewards))]
        order = list(range(len(rewards)))
        random.Random(0).shuffle(order)
        shuffled = estimate([rewards[index] for index in order])
        for index, advantage in zip(order, shuffled, strict=True):
            assert advantage == pytest.approx(expected[index], rel=1e-6, abs=1e-6)

    @pytest.mark.parametrize("rewards", GROUPS)
    def test_a_higher_reward_is_no_worse(
        self, estimate: AdvantageEstimator, rewards: list[float]
    ) -> None:
        pairs = sorted(zip(rewards, estimate(list(rewards)), strict=True))
        advantages = [advantage for _, advantage in pairs]
        for lower, higher in itertools.pairwise(advantages):
            assert lower <= higher + 1e-9

    def test_it_is_a_pure_function(self, estimate: AdvantageEstimator) -> None:
        """The same rewards give the same advantages, and stay as they are."""
        rewards = [0.5, 2.0, -1.0]
        first = list(estimate(rewards))
        estimate([9.0, 8.0])
        assert list(estimate(rewards)) == first
        assert rewards == [0.5, 2.0, -1.0]
