"""Whether a recipe trains, samples and publishes at the pace that a stage assumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_core import RunFailed

if TYPE_CHECKING:
    from forge_core import StageConfig

STALE_STEPS = 10
"""Steps in a row that sample with weights older than the trainer's before the log says so."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened in a stage so far.

    Args:
        trained: optimizer steps.
        sampled: requests that the generator has answered.
        version: of the policy, last published.
    """

    trained: int
    sampled: int
    version: int


class Pace:
    """Compares a recipe's steps with its optimizer steps and published versions.

    Args:
        stage: for its recipe and learning-rate schedule.
    """

    def __init__(self, stage: StageConfig) -> None:
        self._stage = stage
        self._steps = 0
        self._unpublished = 0  # optimizer steps since the recipe last published
        self._stale = 0  # steps in a row that sampled with older weights than the trainer's
        self._has_published = False
        self._has_warned = False

    def step_done(self, before: Counts, now: Counts, *, learned: bool, last: bool) -> str | None:
        """Look at one step of the recipe.

        Args:
            before: counts when the step began.
            now: counts at its end.
            learned: False if the step says that it trained on no token, as one without any signal.
            last: whether it is the stage's last.

        Returns:
            a warning, at most once in a stage.

        Raises:
            RunFailed: there are more optimizer steps than steps, so that the learning-rate schedule
                would end before the stage does.
        """
        self._steps += 1
        self._check_schedule(now)
        if now.version > before.version:
            self._has_published = True
            self._unpublished = self._stale = 0
            return None
        if now.sampled > before.sampled and self._unpublished:
            self._stale += 1
        if learned:
            self._unpublished += now.trained - before.trained
        forgot = last and self._stale > 0 and not self._has_published
        if self._has_warned or not (forgot or self._stale >= STALE_STEPS):
            return None
        self._has_warned = True
        return (
            f"recipe {self._stage.recipe.name!r} (stage {self._stage.name!r}) trains but does not "
            f"publish: the last {self._stale} steps sampled with version {now.version}, which is "
            f"{self._unpublished} optimizer steps old; `await stage.publish()` sends the trainer's "
            "weights to the generator"
        )

    def _check_schedule(self, now: Counts) -> None:
        schedule = self._stage.schedule
        if now.trained <= self._steps or schedule is None or not schedule.ends:
            return
        raise RunFailed(
            f"recipe {self._stage.recipe.name!r} (stage {self._stage.name!r}) made {now.trained} "
            f"optimizer steps in {self._steps} of the stage's steps: training.schedule "
            f"{schedule.name!r} counts optimizer steps and would reach its end too early; make "
            "one optimizer step in each step of the stage, or use a schedule without an end "
            "(training.schedule=null is constant)"
        )
