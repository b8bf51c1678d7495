"""The kernel's own tracker and its settings. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from forge_core.contracts.context import BuildContext
from forge_core.contracts.families import TrackerComponent
from forge_core.contracts.settings import Settings

if TYPE_CHECKING:
    from forge_core.trackers.jsonl import JsonlTracker


class JsonlSettings(Settings):
    """What is written to the run folder."""

    episodes: int = Field(
        default=4, ge=0, description="episodes written to episodes.jsonl in a step; 0: none"
    )


def build_jsonl(settings: JsonlSettings, context: BuildContext) -> JsonlTracker:
    from forge_core.trackers.jsonl import JsonlTracker

    return JsonlTracker(settings.episodes)


JSONL = TrackerComponent(
    name="jsonl",
    settings=JsonlSettings,
    build=build_jsonl,
    summary="metrics, episodes and events as lines of JSON in the run folder",
    default=True,
)
