"""The model that a run begins with, as a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.manifest import MANIFEST, seal
from forge_models.folder import materialize
from forge_run import durable

if TYPE_CHECKING:
    from forge_core import ModelSection


def first_model(section: ModelSection, folder: Path, seed: int) -> Path:
    """The folder that the config names, or the one that is made from ``model.init``: once in a run,
    sealed with a manifest.

    Args:
        section: of the config.
        folder: where a model from ``init`` is kept.
        seed: used where ``init.seed`` is not given.

    Raises:
        ConfigError, DataError: as ``materialize``.
        RunFailed: the folder cannot be written.
    """
    if section.init is None:
        return materialize(section, folder, seed)
    if not (folder / MANIFEST).is_file():
        shutil.rmtree(folder, ignore_errors=True)  # what an older version has left half made
        with durable.new_folder(folder) as draft:
            materialize(section, draft, seed)
            seal(draft)
    return folder
