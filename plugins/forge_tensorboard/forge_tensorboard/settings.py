"""Settings of tracker ``tensorboard``."""

from __future__ import annotations

from forge_core import Settings


class TensorboardSettings(Settings):
    """Nothing to set."""
