"""What the components refuse and say of themselves before anything starts; nothing heavy here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_core import BuildContext, DataError, Task, UsageError
from forge_grpo.settings import GrpoLossSettings, GrpoSettings, SingleTurnSettings
from forge_models.template_files import check_prompts, lacks_chat_template


def max_staleness(settings: GrpoSettings) -> int:
    """Optimizer steps that a trained token may lie behind."""
    return (settings.max_staleness + 1) * settings.optimizer_steps - 1


def grpo_needs(settings: GrpoLossSettings) -> set[str]:
    """Reference logprobs and entropy only where their terms count."""
    needs = {"advantages", "sampler_logprobs"}
    if settings.kl_coef > 0:
        needs.add("reference_logprobs")
    if settings.entropy_coef > 0:
        needs.add("entropy")
    return needs


def check_answers(settings: Any, context: BuildContext, tasks: Sequence[Task]) -> None:
    """Raises:
    DataError: a task has no answer.
    """
    for task in tasks:
        if task.answer is None:
            raise DataError(f"task {task.id!r} has no answer to compare with")


def check_single_turn(settings: SingleTurnSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: there is a system prompt, and the model cannot render chats.
    """
    if settings.system_prompt is not None and lacks_chat_template(context.model):
        raise UsageError(
            "environment.system_prompt: makes every prompt a chat, but the model's tokenizer has "
            "no chat template"
        )


def check_chats(settings: SingleTurnSettings, context: BuildContext, tasks: Sequence[Task]) -> None:
    """Raises:
    DataError: a prompt is a chat that the model cannot render.
    """
    check_prompts(context.model, tasks)
