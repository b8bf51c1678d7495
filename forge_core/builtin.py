"""What the kernel itself contributes, through the same hooks as everybody."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core.command import COMMANDS
from forge_core.contracts.contributions import Command
from forge_core.contracts.hookspecs import hookimpl


@hookimpl
def forge_commands() -> Iterable[Command]:
    for name, (target, summary) in COMMANDS.items():
        yield Command(name=name, target=target, summary=summary)
