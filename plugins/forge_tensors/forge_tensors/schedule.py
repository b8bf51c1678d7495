"""The learning rate of each step, the same for all trainers: warmup, then the config's schedule."""

from __future__ import annotations

import math

from forge_core import BuildContext, RunFailed, Schedule, UsageError
from forge_core.contracts.blame import blaming, title


class LearningRate:
    """``rate(step)`` for steps counted from 0.

    With w warmup steps of T in all it is the peak times ``(step + 1) / (w + 1)`` while
    ``step < w``, so that no step is spent at zero, and then times what the schedule says of step
    ``step - w`` of ``T - w``. Steps beyond T stay at the end. Without a schedule it is constant.

    Args:
        context: of the trainer: its schedule and ``training`` section.

    Raises:
        UsageError: the schedule ends with training, and ``training.steps`` is not given.
    """

    def __init__(self, context: BuildContext) -> None:
        training = context.training
        self._peak, self._warmup, self._steps = (
            training.learning_rate,
            training.warmup_steps,
            training.steps,
        )
        self._selection = context.schedule
        self._schedule: Schedule | None = None
        if self._selection is not None:
            if self._selection.ends and self._steps is None:
                raise UsageError(
                    f"training.schedule: {self._selection.name} needs training.steps to end at"
                )
            self._schedule = self._selection.build(context)

    def __call__(self, step: int) -> float:
        """
        Raises:
            RunFailed: the schedule raised, or returned no finite number of at least 0; names it.
        """
        if step < self._warmup:
            return self._peak * (step + 1) / (self._warmup + 1)
        return self._peak * self._factor(step - self._warmup)

    def _factor(self, step: int) -> float:
        selection, schedule = self._selection, self._schedule
        if selection is None or schedule is None:
            return 1.0
        steps = None
        if self._steps is not None:
            left = self._steps - self._warmup
            step, steps = (min(step, left), left) if left > 0 else (1, 1)
        with blaming(selection, "the call", RunFailed):
            factor = schedule(step, steps)
        number = isinstance(factor, int | float) and not isinstance(factor, bool)
        if not number or not 0 <= factor < math.inf:
            raise RunFailed(
                f"{title(selection)}: returned {factor!r} for step {step} of {steps} after warmup; "
                "it must be a finite number of at least 0, a factor of training.learning_rate"
            )
        return factor
