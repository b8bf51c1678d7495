"""Dataset ``arithmetic``: every problem of two operands; no test problem is ever trained."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Literal

from pydantic import Field, model_validator

from forge_core import BuildContext, Settings, Task
from forge_core.seeding import derive_seed

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


class ArithmeticSettings(Settings):
    """Which problems there are, and which of them this dataset holds."""

    operations: tuple[Literal["+", "-", "*"], ...] = Field(("+",), description="of the problems")
    low: int = Field(10, ge=0, description="smallest operand")
    high: int = Field(99, ge=0, description="largest operand")
    split: Literal["train", "test"] = Field("train", description="which part")
    test_fraction: float = Field(
        0.1, gt=0, lt=1, description="share of problems held out; a+b and b+a go together"
    )
    split_seed: int = Field(0, description="seed of the split; equal for train and test")
    size: int | None = Field(
        None, ge=1, description="that many problems, chosen at random; null: all"
    )
    forgotten_carry: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the sums with a carry out of the units whose demonstration (the "
        "response, never the answer) forgets it: an imperfect teacher, for RL to surpass",
    )
    template: str = Field("{a}{op}{b}=", description="of the prompt; takes a, op and b")

    @model_validator(mode="after")
    def _sensible(self) -> ArithmeticSettings:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        try:
            self.template.format(a=1, op="+", b=2)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"template {self.template!r} does not format: {error!r}") from error
        return self


class Arithmetic:
    """All problems of one split, in a fixed order; the run shuffles them."""

    def __init__(self, settings: ArithmeticSettings) -> None:
        self.settings = settings
        operands = range(settings.low, settings.high + 1)
        problems = [
            (a, op, b)
            for op in settings.operations
            for a in operands
            for b in operands
            if self._held_out(a, op, b) == (settings.split == "test")
        ]
        if settings.size is not None and settings.size < len(problems):
            seed = derive_seed(settings.split_seed, "size", settings.split)
            problems = random.Random(seed).sample(problems, settings.size)
        self._problems = problems

    def _held_out(self, a: int, op: str, b: int) -> bool:
        # Twins share a key, so that knowing 12+34 does not answer a test of 34+12.
        key = (min(a, b), op, max(a, b))
        return derive_seed(self.settings.split_seed, *key) < self.settings.test_fraction * 2**63

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
        chance = derive_seed(self.settings.split_seed, "demonstration", a, b) / 2**63
        return chance < self.settings.forgotten_carry


def build(settings: ArithmeticSettings, context: BuildContext) -> Arithmetic:
    return Arithmetic(settings)
