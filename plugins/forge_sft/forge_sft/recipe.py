"""Recipe ``sft``: supervised fine-tuning on the response tokens of each task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forge_core import DataError, TrainSequence, steps_for
from forge_models.shape import model_window
from forge_sft.formatting import Rows

if TYPE_CHECKING:
    from forge_core import Dataset, RecipeContext, StageConfig
    from forge_sft.settings import SftSettings

CHECKED_AT_ONCE = 100
"""Rows that are checked before the event loop has its turn, so that ctrl-C is noticed."""


class SftRecipe:
    """Every optimizer step takes ``batch_size x gradient_accumulation_steps`` rows."""

    def __init__(self, settings: SftSettings) -> None:
        self.settings = settings
        self._all_checked = False

    def usable_tasks(self, config: StageConfig, dataset: Dataset) -> int:
        """Rows that fit into ``max_length``. They are only counted where epochs are."""
        if self.settings.max_length is None or config.training.num_epochs is None:
            return len(dataset)
        from forge_models.folder import model_tokenizer

        rows = Rows(self.settings, model_tokenizer(config.model), model_window(config.model))
        fitting = sum(rows.make(dataset[index]) is not None for index in range(len(dataset)))
        self._all_checked = True
        if not fitting:
            raise self._nothing_fits()
        return fitting

    def plan(self, config: StageConfig, dataset_length: int) -> int:
        return steps_for(config.training, _rows_per_step(config), dataset_length)

    async def run(self, stage: RecipeContext) -> None:
        training = stage.config.training
        assert training.batch_size is not None
        rows = Rows(self.settings, stage.tokenizer, model_window(stage.context.model))
        if not self._all_checked:
            await _check(stage, rows)
        trainer = await stage.trainer()
        async for step in stage.steps():
            with step.timed("data"):
                drawn = [
                    self._draw(stage, rows, training.batch_size)
                    for _ in range(training.gradient_accumulation_steps)
                ]
            with step.timed("train"):
                result = await trainer.train_step.route([batch for batch, _ in drawn])
            step.trained(result)
            step.record(
                {
                    "epoch": stage.position / len(stage.dataset),
                    "rows_dropped": sum(dropped for _, dropped in drawn),
                }
            )

    def _draw(
        self, stage: RecipeContext, rows: Rows, count: int
    ) -> tuple[list[TrainSequence], int]:
        """The next rows that fit, in the data's order, and how many between them do not."""
        drawn: list[TrainSequence] = []
        dropped = 0
        while len(drawn) < count:
            for task in stage.take(count - len(drawn)):
                row = rows.make(task)
                if row is None:
                    dropped += 1
                else:
                    drawn.append(row)
            if dropped > len(stage.dataset):
                raise self._nothing_fits()
        return drawn, dropped

    def _nothing_fits(self) -> DataError:
        return DataError(
            f"recipe.max_length: no row of the dataset fits into {self.settings.max_length}"
        )


async def _check(stage: RecipeContext, rows: Rows) -> None:
    """Make every row that the stage will take, so that none fails hours later.

    Raises:
        DataError: one cannot be made; names it.
    """
    first = stage.position
    wanted = stage.total_steps * _rows_per_step(stage.config)
    for offset in range(len(stage.dataset)):
        if not wanted:
            break
        wanted -= rows.make(stage.task_at(first + offset)) is not None
        if offset % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
            await asyncio.sleep(0)


def _rows_per_step(config: StageConfig) -> int:
    training = config.training
    assert training.batch_size is not None
    return training.batch_size * training.gradient_accumulation_steps
