"""What a component under test is built with where nothing in particular is wanted."""

from __future__ import annotations

import functools
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_core import (
    BuildContext,
    Component,
    DistributedSection,
    ModelSection,
    Selection,
    Settings,
    TrainingSection,
    TransportComponent,
)
from forge_core.contracts.families import COMPONENT_TYPES
from forge_core.contracts.hookspecs import FAMILY_HOOKS


def bare_context(folder: Path | None = None, **changes: Any) -> BuildContext:
    """A build context of defaults, with a channel of its own: no loss, no transport, torch's AdamW,
    seed 0.

    Args:
        folder: of the model; None: no model.
        changes: arguments of ``BuildContext`` in place of the defaults.
    """
    defaults = {
        "model": ModelSection(path=folder),
        "training": TrainingSection(),
        "distributed": DistributedSection(),
        "optimizer": adamw(),
        "channel": f"test/{uuid.uuid4().hex}",
    }
    return BuildContext(**{**defaults, **changes})


def select(
    family: str, build: Callable[[Settings, BuildContext], Any], **says: Any
) -> Selection[Any]:
    """A component without settings, as a config would have selected it.

    Args:
        family: such as ``generator``.
        build: makes it.
        says: what else it says of itself.
    """
    return Selection(family=family, component=component(family, build, **says), settings=Settings())


def component(
    family: str,
    build: Callable[[Any, BuildContext], Any],
    *,
    name: str = "mine",
    settings: type[Settings] = Settings,
    **says: Any,
) -> Any:
    """A component of a family, of the family's own type.

    Args:
        family: such as ``generator``, or its hook: ``forge_generators``.
        build: makes it.
        name: what a config calls it.
        settings: its settings.
        says: what else it says of itself; a transport reaches everywhere unless it says so.
    """
    of_hook = {hook: family for family, hook in FAMILY_HOOKS.items()}
    kind = COMPONENT_TYPES.get(of_hook.get(family, family), Component)
    if kind is TransportComponent:
        says = {"reach": "cluster", **says}
    return kind(name=name, settings=settings, build=build, summary="for tests", **says)


class AdamWSettings(Settings):
    """Of torch's AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0


def adamw(**settings: Any) -> Selection[Any]:
    """Torch's AdamW, as a config would have selected it for trainers under test."""
    return Selection(
        family="optimizer",
        component=component(
            "optimizer", _adamw, name="adamw", settings=AdamWSettings, sharded=True, state_values=2
        ),
        settings=AdamWSettings(**settings),
    )


def cosine() -> Selection[Any]:
    """Half a cosine down to 0, as a config would have selected it."""
    return select("schedule", _cosine)


def linear() -> Selection[Any]:
    """A straight line down to 0, as a config would have selected it."""
    return select("schedule", _linear)


def _adamw(settings: Any, context: BuildContext) -> Any:
    import torch

    return functools.partial(torch.optim.AdamW, **dict(settings), fused=True)


def _cosine(settings: Any, context: BuildContext) -> Any:
    return lambda step, steps: (1 + math.cos(math.pi * step / steps)) / 2


def _linear(settings: Any, context: BuildContext) -> Any:
    return lambda step, steps: 1 - step / steps
