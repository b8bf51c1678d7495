"""Learning-rate schedules: factors of the peak after warmup, by their settings.

``step`` counts from 0 after warmup, ``steps`` is the number there are; at ``step == steps``
training is over.
"""

from __future__ import annotations

import math
from functools import partial

from forge_core import Schedule, Settings
from forge_optim.settings import FloorSettings, InverseSqrtSettings, WsdSettings


def constant(settings: Settings) -> Schedule:
    """1."""
    return _constant


def linear(settings: FloorSettings) -> Schedule:
    """1 - x for x = step / steps, above ``floor``."""
    return partial(_linear, settings.floor)


def cosine(settings: FloorSettings) -> Schedule:
    """(1 + cos(pi x)) / 2 for x = step / steps, above ``floor`` (arXiv:1608.03983)."""
    return partial(_cosine, settings.floor)


def wsd(settings: WsdSettings) -> Schedule:
    """1, and in the last part of the steps linear to ``floor``."""
    return partial(_wsd, settings.decay, settings.floor)


def inverse_sqrt(settings: InverseSqrtSettings) -> Schedule:
    """1 / sqrt(1 + step / timescale)."""
    return partial(_inverse_sqrt, settings.timescale)


def _constant(step: int, steps: int | None) -> float:
    return 1.0


def _linear(floor: float, step: int, steps: int | None) -> float:
    assert steps is not None
    return _above(floor, 1 - step / steps)


def _cosine(floor: float, step: int, steps: int | None) -> float:
    assert steps is not None
    return _above(floor, (1 + math.cos(math.pi * (step / steps))) / 2)


def _wsd(decay: float, floor: float, step: int, steps: int | None) -> float:
    assert steps is not None
    return _above(floor, min(1.0, (steps - step) / (decay * steps)))


def _inverse_sqrt(timescale: int, step: int, steps: int | None) -> float:
    return 1 / math.sqrt(1 + step / timescale)


def _above(floor: float, factor: float) -> float:
    return floor + (1 - floor) * factor
