"""Numbers that optimizers keep for each weight, by their settings. Imports nothing heavy."""

from __future__ import annotations

from forge_optim.settings import AdamSettings, RmspropSettings, SgdSettings


def adam_state(settings: AdamSettings) -> float:
    """Two moments, and the largest second one."""
    return 2 + settings.amsgrad


def sgd_state(settings: SgdSettings) -> float:
    """The last step, where there is momentum."""
    return float(settings.momentum > 0)


def rmsprop_state(settings: RmspropSettings) -> float:
    """The mean of squares, and what is asked for beside it."""
    return 1 + (settings.momentum > 0) + settings.centered
