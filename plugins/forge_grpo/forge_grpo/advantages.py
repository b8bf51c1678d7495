"""Group-relative advantages: how much better an episode did than its siblings."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from statistics import fmean, stdev
from typing import Literal

EPSILON = 1e-4
"""Added to the standard deviation; rewards are of order 1."""

ROUNDING = 1e-9
"""Rewards that differ by less, relative to their size or absolutely, are equal: 0.1 + 0.2 and 0.3
are two sums of the same parts."""


class GroupMean:
    """Reward minus the group's mean, DeepSeekMath (arXiv:2402.03300), section 4.1.2."""

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        mean = fmean(rewards)
        return [reward - mean for reward in rewards]


def scale_advantages(
    advantages: Sequence[float], rewards: Sequence[float], scale: Literal["std", "none"]
) -> list[float]:
    """Advantages of one group as they are trained on.

    ``std`` divides by the standard deviation of the rewards + epsilon, DeepSeekMath
    (arXiv:2402.03300), section 4.1.2, with that of the sample. ``none`` leaves them, Dr. GRPO
    (arXiv:2503.20783), which does not weight easy and hard tasks up.

    Args:
        advantages: what the estimator made of the rewards. [G]
        rewards: of the group's episodes. [G]
        scale: what they are divided by; equal rewards have no deviation and divide nothing.

    Returns:
        One advantage an episode; all exactly 0 where rewards are equal and an estimator found
        nothing but rounding in them. [G]
    """
    if isclose(min(rewards), max(rewards), rel_tol=ROUNDING, abs_tol=ROUNDING):
        rounding = ROUNDING * max(1.0, *map(abs, rewards))
        is_rounding = max(map(abs, advantages)) <= rounding
        return [0.0] * len(rewards) if is_rounding else list(advantages)
    divisor = stdev(rewards) + EPSILON if scale == "std" else 1.0
    return [advantage / divisor for advantage in advantages]
