"""The base of every settings model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of every component's settings: unknown keys and numbers that are not finite are refused,
    values cannot change.

    Give every field a description with its unit; ``forge config schema`` prints it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
