"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core import Command, hookimpl


@hookimpl
def forge_commands() -> Iterable[Command]:
    yield Command(
        name="doctor",
        target="forge_doctor.command:doctor",
        summary="Say what is installed and what is wrong with it.",
    )
