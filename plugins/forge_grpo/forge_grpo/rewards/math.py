"""Reward ``math``: 1 if the completion's final answer equals the reference as mathematics.

Parsing and comparing are Math-Verify's. A number that merely occurs in the text earns nothing.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from forge_core import DataError, RewardSample
from forge_grpo.rewards.settings import MathSettings

DELIMITED = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")
"""LaTeX that says itself where it begins."""


class Math:
    """Understands LaTeX (boxed, or between its delimiters) and plain numbers and expressions.

    What counts in a completion is the last boxed expression, else what follows "answer", else the
    last expression. A percent sign may be left out, and so may the name in ``x = 5``.
    """

    def __init__(self, settings: MathSettings) -> None:
        # It warns on every call that its timeouts are off, which they are on purpose (see below).
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self.precision = settings.precision

    def __call__(self, sample: RewardSample) -> float:
        answer = sample.task.answer
        if answer is None:
            raise DataError(f"task {sample.task.id!r} has no answer to compare with")
        reference = _reference(answer)
        if not reference:
            raise DataError(f"task {sample.task.id!r}: answer {answer!r} is no mathematics")
        found = _parse(sample.completion)
        return float(verify(reference, found, float_rounding=self.precision, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _reference(answer: str) -> list[Any]:
    """The reference answer, which is read whole: ``3x`` is no 3, and ``10:30`` no 10."""
    latex = answer if DELIMITED.search(answer) else f"${answer}$"
    return _parse(latex, [LatexExtractionConfig()]) or _parse(answer)


def _parse(text: str, *targets: Any) -> list[Any]:
    # Rewards run in a process of their own under the kernel's deadline, which also ends what
    # Math-Verify's alarm cannot interrupt; its own timeouts are therefore off. Without its
    # fallback, what cannot be parsed is not compared as text either.
    parsed: list[Any] = parse(text, *targets, fallback_mode="no_fallback", parsing_timeout=None)
    return parsed
