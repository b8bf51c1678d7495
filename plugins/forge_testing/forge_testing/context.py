"""What a component under test is built with where nothing in particular is wanted."""

from __future__ import annotations

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
    """A build context of defaults, with a channel of its own: no loss, no transport, seed 0.

    Args:
        folder: of the model; None: no model.
        changes: arguments of ``BuildContext`` in place of the defaults.
    """
    defaults = {
        "model": ModelSection(path=folder),
        "training": TrainingSection(),
        "distributed": DistributedSection(),
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
