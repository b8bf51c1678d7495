"""One step of a stage: the recipe fills it in, the kernel yields and finishes it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge_core.contracts.types import Episode, StepResult


class Step:
    """Args:
    number: counts from 1 in the stage.
    run_number: counts from 1 in the run.
    """

    def __init__(self, number: int, run_number: int) -> None:
        self.number = number
        self.run_number = run_number
        self.metrics: dict[str, float] = {}
        self.timing: dict[str, float] = {}
        self.episodes: Sequence[Episode] = ()
        self._rates: dict[str, tuple[float, str]] = {}
        self._started = time.perf_counter()

    def record(self, metrics: Mapping[str, float]) -> None:
        """Add to the step's record what repeats with the seed; never anything that depends on time.

        Raises:
            ValueError: a name was already recorded in this step.
        """
        for name, value in metrics.items():
            if name in self.metrics:
                raise ValueError(f"metric {name!r} was already recorded in step {self.run_number}")
            self.metrics[name] = float(value)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the wall-clock time of a block to ``timing["NAME_seconds"]``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            key = f"{name}_seconds"
            self.timing[key] = self.timing.get(key, 0.0) + time.perf_counter() - begin

    def rate(self, name: str, amount: float, *, over: str) -> None:
        """Record ``timing["NAME_per_second"]``: an amount over the time of ``timed(over)``.

        It is computed when the step ends, so it may be called inside the timed block; amounts of
        one name add up.
        """
        before = self._rates.get(name, (0.0, over))[0]
        self._rates[name] = (before + amount, over)

    def trained(self, result: StepResult) -> None:
        """Record an optimizer step, and the rate of ``tokens``, which counts every token that the
        model processed (prompts too), over ``timed("train")``."""
        self.record(
            {
                "loss": result.loss,
                "grad_norm": result.grad_norm,
                "learning_rate": result.learning_rate,
                "tokens": result.tokens,
                "trained_tokens": result.trained_tokens,
                **result.metrics,
            }
        )
        self.rate("train_tokens", result.tokens, over="train")

    def finish(self) -> None:
        """Compute the rates, the means of what its episodes measured, and the step's time."""
        measured: dict[str, list[float]] = {}
        for episode in self.episodes:
            for name, value in episode.metrics.items():
                measured.setdefault(name, []).append(value)
        self.record({name: sum(values) / len(values) for name, values in measured.items()})
        for name, (amount, over) in self._rates.items():
            seconds = self.timing.get(f"{over}_seconds", 0.0)
            self.timing[f"{name}_per_second"] = amount / seconds if seconds > 0 else 0.0
        self.timing["step_seconds"] = time.perf_counter() - self._started
