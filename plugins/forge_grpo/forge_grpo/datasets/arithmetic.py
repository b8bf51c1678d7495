"""Dataset ``arithmetic``: every problem of two operands; no test problem is ever trained."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from string import Formatter
from typing import Literal

from pydantic import Field, model_validator

from forge_core import DataError, Settings, Task, derive_seed

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}

TEST_SHARE = 0.1
"""Share of all problems that is held out. No setting, so that no two datasets of any settings can
disagree on what is a test problem."""

MOST_PROBLEMS = 3_000_000
"""Each is held in memory."""


class ArithmeticSettings(Settings):
    """Which problems there are, and which of them this dataset holds."""

    operations: tuple[Literal["+", "-", "*"], ...] = Field(
        ("+",), min_length=1, description="of the problems"
    )
    low: int = Field(10, ge=0, description="smallest operand")
    high: int = Field(99, ge=0, description="largest operand")
    split: Literal["train", "test"] = Field(
        "train",
        description="which part: a tenth of the problems is held out as test, the same whatever "
        "the other settings; a+b and b+a go together",
    )
    size: int | None = Field(
        None, ge=1, description="that many problems of the split, chosen at random; null: all"
    )
    forgotten_carry: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the sums with a carry out of the units whose demonstration (the "
        "response, never the answer) forgets it: an imperfect teacher, for RL to surpass",
    )
    template: str = Field(
        "{a}{op}{b}=",
        description="of the prompt; takes a, b and, with several operations, op",
    )

    @model_validator(mode="after")
    def _sensible(self) -> ArithmeticSettings:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        if len(set(self.operations)) < len(self.operations):
            raise ValueError("operations names one twice")
        problems = len(self.operations) * (self.high - self.low + 1) ** 2
        if problems > MOST_PROBLEMS:
            raise ValueError(f"{problems} problems are more than {MOST_PROBLEMS}")
        self._check_template()
        return self

    def _check_template(self) -> None:
        try:
            named = {name for _, name, _, _ in Formatter().parse(self.template) if name is not None}
            if unknown := sorted(named - {"a", "b", "op"}):
                raise ValueError(f"takes a, op and b, not {unknown[0]!r}")
            self.template.format(a=1, op="+", b=2)
        except ValueError as error:
            raise ValueError(f"template {self.template!r}: {error}") from error
        needed = {"a", "b"} | ({"op"} if len(self.operations) > 1 else set())
        if lacking := sorted(needed - named):
            raise ValueError(f"template {self.template!r} leaves out {lacking[0]!r}")


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
