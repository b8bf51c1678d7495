"""What tracker ``tensorboard`` refuses before anything starts. Imports nothing heavy."""

from __future__ import annotations

import importlib.util

from forge_core import BuildContext, UsageError
from forge_tensorboard.settings import TensorboardSettings

INSTALL = "pip install tensorboard"


def check_installed(settings: TensorboardSettings, context: BuildContext) -> None:
    """Raises:
    UsageError: the package that writes the files is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            f"tracker tensorboard: the package tensorboard is not installed; {INSTALL}"
        )
