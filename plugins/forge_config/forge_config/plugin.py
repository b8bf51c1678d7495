"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import Command, hookimpl


@hookimpl
def forge_commands() -> Iterable[Command]:
    yield Command(
        name="config",
        target="forge_config.command:config",
        summary="Show, explain and compare configs.",
    )
