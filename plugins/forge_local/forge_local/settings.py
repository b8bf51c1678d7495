"""Settings of runtime ``local``."""

from __future__ import annotations

from forge_core import Settings


class LocalSettings(Settings):
    """Nothing to set."""
