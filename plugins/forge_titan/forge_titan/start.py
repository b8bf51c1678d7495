"""Builds the trainer, once TorchTitan is known to be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import BuildContext
from forge_titan.checks import require_torchtitan
from forge_titan.settings import TitanTrainerSettings

if TYPE_CHECKING:
    from forge_titan.trainer import TitanTrainer


def build(settings: TitanTrainerSettings, context: BuildContext) -> TitanTrainer:
    """Load ``context.model.path`` and make this rank's part of the trainer.

    Raises:
        PluginError: TorchTitan is not installed.
        UsageError: something is asked for that this trainer does not do.
        DataError: the model folder cannot be loaded, or TorchTitan has no such model.
    """
    require_torchtitan()
    from forge_titan.trainer import TitanTrainer

    return TitanTrainer(settings, context)
