"""Settings of a reward worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from forge_core import Settings
from forge_rewards.confinement import Confinement
from forge_rewards.process import Limits


class RewardWorkerSettings(Settings):
    """What a worker is given by its pool."""

    opening: bytes = Field(description="pickled parts, context and limits, for the reward process")
    limits: Mapping[str, Limits] = Field(description="of each part's calls")
    log: Path | None = Field(description="file for what rewards print; null: our stderr")
    confinement: Confinement = Field(description="environment and limits of the process")
