"""What the kernel itself contributes, through the same hooks as everybody."""

from __future__ import annotations

from collections.abc import Iterable

from forge_core.component import Component
from forge_core.hookspecs import hookimpl
from forge_core.protocols import Runtime, Tracker


@hookimpl
def forge_runtimes() -> Iterable[Component[Runtime]]:
    from forge_core.runtimes.components import LOCAL

    yield LOCAL


@hookimpl
def forge_trackers() -> Iterable[Component[Tracker]]:
    from forge_core.trackers.components import CONSOLE, JSONL, TENSORBOARD

    yield from (CONSOLE, JSONL, TENSORBOARD)
