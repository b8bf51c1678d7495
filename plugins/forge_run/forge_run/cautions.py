"""What works, but is unlikely to be what a person wants: warnings before a start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge_core import RunConfig, StageConfig


def cautions(config: RunConfig) -> list[str]:
    """One line for each caution of the components that the stages use."""
    stages: dict[str, list[str]] = {}
    for stage in config.stages:
        for line in _of_stage(stage):
            stages.setdefault(line, []).append(stage.name)
    return [f"{line} (stage {', '.join(map(repr, names))})" for line, names in stages.items()]


def _of_stage(stage: StageConfig) -> Iterator[str]:
    context = stage.early_context()
    for section, selection, procs in (
        ("trainer", stage.trainer, stage.trainer_placement.procs),
        ("generator", stage.generator, stage.generator_placement.procs),
    ):
        if selection is not None and section in stage.recipe.requires:
            yield from selection.cautions(replace(context, world_size=procs))
