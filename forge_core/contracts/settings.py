"""The base of every settings model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict

InputPath = Annotated[Path, "relative to the config file"]
"""Type of a setting that names a file or folder to read. Written relative in a config file, it is
relative to that file; on the command line, in a variable, in code and in a preset, to the working
directory. The component gets it absolute, and so does the run's own ``config.yaml``."""


class Settings(BaseModel):
    """Base of every component's settings: unknown keys and numbers that are not finite are refused,
    values cannot change.

    Give every field a description with its unit; ``forge config schema`` prints it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
