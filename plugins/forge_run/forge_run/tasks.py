"""Whether a stage's components can work with the tasks of its data, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_core import DataError

if TYPE_CHECKING:
    from forge_core import Dataset, Selection, StageConfig

CHECKED_TASKS = 1000
"""Tasks at the beginning of a dataset that are checked: a dataset may take long to make each."""


def check_tasks(stage: StageConfig, section: str, dataset: Dataset) -> None:
    """Let recipe, environment and rewards refuse tasks that they cannot work with.

    Args:
        stage: of the config.
        section: ``dataset`` or ``eval_dataset``.
        dataset: what that section built.

    Raises:
        DataError: names the section, the component and the task.
    """
    chosen: dict[str, Selection[Any] | None] = {}
    count = len(dataset)
    if section == "dataset":
        chosen["recipe"] = stage.recipe
        requires = stage.recipe.requires
        sampled, judged = "generator" in requires, "rewards" in requires
    else:
        sampled = judged = stage.evaluates()
        count = min(count, stage.evaluation.tasks or count)
    if sampled:
        chosen["environment"] = stage.environment
    if judged:
        chosen |= {f"rewards.{name}": part.selection for name, part in stage.rewards.items()}
    checked = {
        key: selection
        for key, selection in chosen.items()
        if selection is not None and selection.checks_tasks
    }
    if not checked:
        return
    tasks = [dataset[index] for index in range(min(count, CHECKED_TASKS))]
    for key, selection in checked.items():
        try:
            selection.check_tasks(stage.early_context(), tasks)
        except DataError as error:
            raise DataError(f"{section}: {error} ({key}, stage {stage.name!r})") from error
