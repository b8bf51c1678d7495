"""The course of the learning rate, the same for every trainer."""

from __future__ import annotations

import math

from forge_core import TrainingSection, UsageError


def learning_rate(training: TrainingSection, step: int) -> float:
    """Learning rate of a step, counted from 0.

    With w warmup steps of T in all it is the peak times ``(step + 1) / (w + 1)`` while
    ``step < w``, so that no step is spent at zero, and then times a function of
    ``x = (step - w) / (T - w)``, which goes from 0 to 1 as training ends: 1 (constant), ``1 - x``
    (linear) or ``(1 + cos(pi x)) / 2`` (cosine). Steps beyond T stay at the end.

    Raises:
        UsageError: the schedule ends with training, and ``training.steps`` is not given.
    """
    peak, warmup = training.learning_rate, training.warmup_steps
    if training.schedule != "constant" and training.steps is None:
        raise UsageError(f"training.schedule: {training.schedule} needs training.steps to end at")
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if training.schedule == "constant" or training.steps is None:
        return peak
    left = training.steps - warmup
    done = min(1.0, (step - warmup) / left) if left > 0 else 1.0
    if training.schedule == "linear":
        return peak * (1 - done)
    return peak * (1 + math.cos(math.pi * done)) / 2
