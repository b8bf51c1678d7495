"""Dataset ``arithmetic``: every problem of two operands; no test problem is ever trained."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

from forge_core import DataError, Task, derive_seed
from forge_grpo.settings import ArithmeticSettings

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}

TEST_SHARE = 0.1
"""Share of all problems that is held out. No setting, so that no two datasets of any settings can
disagree on what is a test problem."""


class Arithmetic:
    """All problems of one split, in a fixed order; the run shuffles them.

    Raises:
        DataError: the split holds fewer problems than ``size``, or none.
    """

    def __init__(self, settings: ArithmeticSettings) -> None:
        self.settings = settings
        operands = range(settings.low, settings.high + 1)
        problems = [
            (a, op, b)
            for op in settings.operations
            for a in operands
            for b in operands
            if is_test(a, op, b) == (settings.split == "test")
        ]
        wanted = settings.size or 1
        if len(problems) < wanted:
            raise DataError(
                f"dataset arithmetic: {wanted} {settings.split} problems are wanted, and operands "
                f"from {settings.low} to {settings.high} give {len(problems)}"
            )
        if settings.size is not None:
            seed = derive_seed(0, "size", settings.split)
            problems = random.Random(seed).sample(problems, settings.size)
        self._problems = problems

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index: int) -> Task:
        a, op, b = self._problems[index]
        result = OPERATIONS[op](a, b)
        return Task(
            id=f"{a}{op}{b}",
            prompt=self.settings.template.format(a=a, op=op, b=b),
            answer=str(result),
            response=str(result - 10) if self._forgets(a, op, b) else str(result),
        )

    def _forgets(self, a: int, op: str, b: int) -> bool:
        if op != "+" or a % 10 + b % 10 < 10:
            return False
        return _chance("demonstration", a, b) < self.settings.forgotten_carry


def is_test(a: int, op: str, b: int) -> bool:
    """Whether a problem is held out. Twins are so together: 12+34 would answer a test of 34+12."""
    return _chance(min(a, b), op, max(a, b)) < TEST_SHARE


def _chance(*names: object) -> float:
    """A number in [0, 1) that depends on the names alone."""
    return derive_seed(0, *names) / 2**63
