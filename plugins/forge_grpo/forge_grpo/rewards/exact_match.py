"""Reward ``exact_match``: 1 if the completion is the answer, else 0."""

from __future__ import annotations

from forge_core import DataError, RewardSample
from forge_grpo.settings import ExactMatchSettings


class ExactMatch:
    """White space around and its amount within do not count; everything else does."""

    def __init__(self, settings: ExactMatchSettings) -> None:
        self.case_sensitive = settings.case_sensitive

    def __call__(self, sample: RewardSample) -> float:
        if sample.task.answer is None:
            raise DataError(f"task {sample.task.id!r} has no answer to compare with")
        return float(self._normal(sample.completion) == self._normal(sample.task.answer))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text if self.case_sensitive else text.casefold()
