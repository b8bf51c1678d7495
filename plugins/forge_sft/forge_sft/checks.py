"""What recipe ``sft`` refuses and bounds, known before anything starts. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core import BuildContext, DataError, Task, TokenLimit, UsageError
from forge_models.shape import model_window
from forge_models.template_files import check_prompts
from forge_sft.settings import SftSettings


def max_tokens(settings: SftSettings) -> TokenLimit:
    """Rows above ``max_length`` are left out or cut."""
    return TokenLimit(tokens=settings.max_length, key="recipe.max_length")


def check_recipe(settings: SftSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: rows are to be cut, and no length is given, or it is beyond the model's window.
    """
    window = model_window(context.model)
    longest = settings.max_length
    if window is not None and longest is not None and longest > window:
        raise UsageError(
            f"recipe.max_length: {longest} is more than the {window} positions the model knows"
        )
    if settings.overlong == "truncate" and settings.max_length is None:
        raise UsageError("recipe.overlong=truncate: does nothing without recipe.max_length")


def check_tasks(settings: SftSettings, context: BuildContext, tasks: Sequence[Task]) -> None:
    """Raises:
    DataError: a task has nothing to imitate, or is a chat that the model's template does not
        render as a training row.
    """
    for task in tasks:
        if task.response is None and task.answer is None:
            raise DataError(f"task {task.id!r} has neither response nor answer to imitate")
    check_prompts(context.model, tasks)
    chats = [task for task in tasks if not isinstance(task.prompt, str)]
    if chats:
        # Heavy, and only known from the template itself.
        from forge_models.folder import model_tokenizer
        from forge_sft.formatting import Rows

        rows = Rows(settings, model_tokenizer(context.model), model_window(context.model))
        for task in chats:
            rows.make(task)
