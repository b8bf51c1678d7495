"""Environment ``single_turn``: the task's prompt, one completion, the end."""

from __future__ import annotations

from forge_core import FinishReason, Message, Prompt, Task
from forge_grpo.settings import SingleTurnSettings


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
