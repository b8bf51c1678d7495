"""Reward ``math``: 1 if the completion's final answer equals the reference as mathematics.

Parsing and comparing are Math-Verify's. A number that merely occurs in the text earns nothing.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify

from forge_core import DataError, RewardSample
from forge_grpo.rewards.settings import MathSettings


class Math:
    """Understands LaTeX, boxed answers, fractions, intervals, sets and plain expressions."""

    def __init__(self, settings: MathSettings) -> None:
        # It warns on every call that its timeouts are off, which they are on purpose (see below).
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self.precision = settings.precision

    def __call__(self, sample: RewardSample) -> float:
        if sample.task.answer is None:
            raise DataError(f"task {sample.task.id!r} has no answer to compare with")
        # Rewards run in a process of their own under the kernel's deadline, which also ends what
        # Math-Verify's alarm cannot interrupt; its own timeouts are therefore off.
        answer = sample.task.answer
        gold = parse(answer, parsing_timeout=None) or parse(f"${answer}$", parsing_timeout=None)
        if not gold:
            raise DataError(f"task {sample.task.id!r}: answer {answer!r} is no mathematics")
        found = parse(sample.completion, parsing_timeout=None)
        return float(verify(gold, found, float_rounding=self.precision, timeout_seconds=None))
