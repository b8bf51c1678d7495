"""Settings of the supervised losses."""

from __future__ import annotations

from forge_core import Settings


class CrossEntropySettings(Settings):
    """Nothing to set."""
