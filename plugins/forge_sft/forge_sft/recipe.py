"""Recipe ``sft``: supervised fine-tuning on the response tokens of each task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import DataError, TrainSequence
from forge_core.run.plan import steps_for
from forge_sft.formatting import to_sequence

if TYPE_CHECKING:
    from forge_core.config.resolve import StageConfig
    from forge_core.run.stage import Stage
    from forge_sft.recipe_settings import SftSettings


class SftRecipe:
    """Every optimizer step takes ``batch_size x gradient_accumulation_steps`` rows."""

    requires = frozenset({"dataset", "trainer", "loss"})
    provides: frozenset[str] = frozenset()

    def __init__(self, settings: SftSettings) -> None:
        self.settings = settings

    def plan(self, config: StageConfig, dataset_length: int) -> int:
        training = config.training
        assert training.batch_size is not None
        rows = training.batch_size * training.gradient_accumulation_steps
        return steps_for(training, rows, dataset_length)

    async def run(self, stage: Stage) -> None:
        training = stage.config.training
        assert training.batch_size is not None
        trainer = await stage.trainer()
        async for step in stage.steps():
            with step.timed("data"):
                drawn = [
                    self._rows(stage, training.batch_size)
                    for _ in range(training.gradient_accumulation_steps)
                ]
            with step.timed("train"):
                result = await trainer.train_step.route([rows for rows, _ in drawn])
            step.trained(result)
            step.record(
                {
                    "epoch": stage.tasks.position / len(stage.dataset),
                    "rows_dropped": sum(dropped for _, dropped in drawn),
                }
            )

    def _rows(self, stage: Stage, count: int) -> tuple[list[TrainSequence], int]:
        """The next rows that fit, in the data's order, and how many between them do not."""
        rows: list[TrainSequence] = []
        dropped = 0
        while len(rows) < count:
            for task in stage.take(count - len(rows)):
                row = to_sequence(
                    task,
                    stage.tokenizer,
                    max_length=self.settings.max_length,
                    overlong=self.settings.overlong,
                )
                if row is None:
                    dropped += 1
                else:
                    rows.append(row)
            if dropped > len(stage.dataset):
                raise DataError(
                    f"recipe.max_length: no row of the dataset fits into {self.settings.max_length}"
                )
        return rows, dropped
