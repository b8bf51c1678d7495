"""The check of rewards that compare with a task's answer. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_core import BuildContext, DataError, Task


def check_answers(settings: Any, context: BuildContext, tasks: Sequence[Task]) -> None:
    """Raises:
    DataError: a task has no answer.
    """
    for task in tasks:
        if task.answer is None:
            raise DataError(f"task {task.id!r} has no answer to compare with")
