"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forge_core import Command, TrackerComponent, hookimpl
from forge_run.settings import JsonlSettings

if TYPE_CHECKING:
    from forge_core import Forge, Runner


@hookimpl
def forge_runner(app: Forge) -> Runner:
    from forge_run.runner import FolderRunner

    return FolderRunner(app)


@hookimpl
def forge_trackers() -> Iterable[TrackerComponent]:
    yield TrackerComponent(
        name="jsonl",
        settings=JsonlSettings,
        build="forge_run.trackers.jsonl:JsonlTracker",
        summary="metrics, episodes and events as lines of JSON in the run folder",
        default=True,
    )


@hookimpl
def forge_commands() -> Iterable[Command]:
    yield Command(
        name="run", target="forge_run.commands.run:run", summary="Run a preset or a config file."
    )
    yield Command(
        name="plan",
        target="forge_run.commands.plan:plan",
        summary="Say what a config would take, before it starts.",
    )
    yield Command(
        name="runs", target="forge_run.commands.runs:runs", summary="List the runs in a folder."
    )
    yield Command(
        name="model",
        target="forge_run.commands.model:model",
        summary="Make a model folder from what a plugin ships.",
    )
