"""What is known of a whole run, over all the processes that it went through."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forge_core import Evaluation

if TYPE_CHECKING:
    from forge_core import Summary
    from forge_run.checkpoint import RunState


class Progress:
    """Time, scores and latest numbers, from the start of the run.

    Args:
        state: of the checkpoint that the run goes on from; None: it begins.
        earlier: how the process before ended, where it could say.
    """

    def __init__(self, state: RunState | None = None, earlier: Summary | None = None) -> None:
        self._began = time.monotonic()
        known = [Evaluation(**each) for each in (state and state.evaluations) or ()]
        if state is not None and earlier is not None:
            # The last score of a stage comes after its last checkpoint.
            known += [each for each in earlier.evaluations if each.step <= state.step]
        self._evaluations = {_place(each): each for each in known}
        self._tells_all = state is None or state.evaluations is not None
        self._seconds_before = max(
            state.seconds if state else 0.0, earlier.seconds if earlier else 0.0
        )
        self.metrics: Mapping[str, float] = dict(state.metrics) if state else {}
        """Of the last step."""

    @property
    def seconds(self) -> float:
        """Wall-clock time so far, without the time in which no process ran."""
        return self._seconds_before + time.monotonic() - self._began

    @property
    def evaluations(self) -> Sequence[Evaluation]:
        """In the order in which they were made."""
        return tuple(self._evaluations.values())

    def add(self, evaluation: Evaluation) -> None:
        """Keep a score; one that was made again takes the place of the other."""
        self._evaluations.pop(_place(evaluation), None)
        self._evaluations[_place(evaluation)] = evaluation

    def has_final(self, stage: str, step: int) -> bool:
        """Whether a stage was scored at its end, or it is not known."""
        return not self._tells_all or (stage, "after", step) in self._evaluations

    def to_state(self) -> dict[str, Any]:
        """Fields of ``RunState``."""
        return {
            "seconds": self.seconds,
            "metrics": dict(self.metrics),
            "evaluations": [asdict(each) for each in self.evaluations],
        }


def _place(evaluation: Evaluation) -> tuple[str, str, int]:
    return evaluation.stage, evaluation.moment, evaluation.step
