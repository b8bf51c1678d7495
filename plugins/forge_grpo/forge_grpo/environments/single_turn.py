"""Environment ``single_turn``: the task's prompt, one completion, the end."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from forge_core import BuildContext, FinishReason, Message, Prompt, Settings, Task, UsageError
from forge_core.models.template_files import check_prompts, lacks_chat_template


class SingleTurnSettings(Settings):
    """What stands before the task's prompt."""

    system_prompt: str | None = Field(None, description="system message; makes every prompt a chat")


class SingleTurnInteraction:
    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt

    async def respond(self, completion: str, finish_reason: FinishReason) -> None:
        return None


class SingleTurn:
    max_turns = 1

    def __init__(self, settings: SingleTurnSettings) -> None:
        self.system_prompt = settings.system_prompt

    async def start(self, task: Task, seed: int) -> SingleTurnInteraction:
        if self.system_prompt is None:
            return SingleTurnInteraction(task.prompt)
        prompt = task.prompt
        rest = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        return SingleTurnInteraction((Message("system", self.system_prompt), *rest))


def check(settings: SingleTurnSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: there is a system prompt, and the model cannot render chats.
    """
    if settings.system_prompt is not None and lacks_chat_template(context.model):
        raise UsageError(
            "environment.system_prompt: makes every prompt a chat, but the model's tokenizer has "
            "no chat template"
        )


def check_tasks(settings: SingleTurnSettings, context: BuildContext, tasks: Sequence[Task]) -> None:
    """Raises:
    DataError: a prompt is a chat that the model cannot render.
    """
    check_prompts(context.model, tasks)
