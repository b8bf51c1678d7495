"""What a component under test is built with where nothing in particular is wanted."""

from __future__ import annotations

from forge_core.component import BuildContext
from forge_core.config.sections import DistributedSection, ModelSection, TrainingSection


def bare_context() -> BuildContext:
    """A build context of defaults: no model, no loss, no transport, seed 0."""
    return BuildContext(
        model=ModelSection(), training=TrainingSection(), distributed=DistributedSection()
    )
