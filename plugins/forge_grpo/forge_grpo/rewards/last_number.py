"""Reward ``last_number``: 1 if the last whole number of the completion is the answer, else 0."""

from __future__ import annotations

import re

from forge_core import DataError, RewardSample

_NUMBER = re.compile(r"(?<![\d.,])-?\d+(?:,\d{3})*(?![\d,]*\.?\d)")
"""A whole number, perhaps with commas between thousands; no part of a decimal fraction."""


class LastNumber:
    """Reads numbers and never evaluates: ``4 + 9`` says 9, not 13."""

    def __call__(self, sample: RewardSample) -> float:
        answer = sample.task.answer
        if answer is None:
            raise DataError(f"task {sample.task.id!r} has no answer to compare with")
        try:
            wanted = int(answer)
        except ValueError:
            raise DataError(
                f"task {sample.task.id!r}: the answer {answer!r} is not a whole number"
            ) from None
        numbers = _NUMBER.findall(sample.completion)
        return float(bool(numbers) and int(numbers[-1].replace(",", "")) == wanted)
