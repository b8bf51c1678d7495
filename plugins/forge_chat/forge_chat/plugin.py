"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import Command, hookimpl


@hookimpl
def forge_commands() -> Iterable[Command]:
    yield Command(
        name="generate",
        target="forge_chat.commands.generate:generate",
        summary="Text from a model or a run.",
    )
    yield Command(
        name="chat",
        target="forge_chat.commands.chat:chat",
        summary="Talk with a model or a run.",
    )
    yield Command(
        name="serve",
        target="forge_chat.commands.serve:serve",
        summary="Serve a model or a run to OpenAI clients.",
    )
