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


def group_advantages(
    rewards: Sequence[float], *, scale: Literal["std", "none"] = "std"
) -> list[float]:
    """Advantage of each episode of one group.

    ``std``: (r - mean) / (std + epsilon), DeepSeekMath (arXiv:2402.03300) section 4.1.2, with the
    sample standard deviation. ``none``: r - mean, Dr. GRPO (arXiv:2503.20783), which does not
    weight easy and hard tasks up.

    Args:
        rewards: of one group's episodes. [G]
        scale: what the difference is divided by.

    Returns:
        One advantage an episode; all exactly 0 when the rewards are equal but for rounding. [G]
    """
    if not rewards or isclose(min(rewards), max(rewards), rel_tol=ROUNDING, abs_tol=ROUNDING):
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    divisor = stdev(rewards) + EPSILON if scale == "std" else 1.0
    return [(reward - mean) / divisor for reward in rewards]
