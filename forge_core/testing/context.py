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
)


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


def select(family: str, build: Callable[[Settings, BuildContext], Any]) -> Selection[Any]:
    """A component without settings, as a config would have selected it.

    Args:
        family: such as ``generator``.
        build: makes it.
    """
    component = Component(name="conformance", settings=Settings, build=build, summary="for tests")
    return Selection(family=family, component=component, settings=Settings())
