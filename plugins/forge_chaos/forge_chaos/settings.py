"""Settings of tracker ``chaos``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from forge_core import Settings

Service = Literal["generator", "trainer", "reference", "rewards", "replay_buffer", "controller"]
"""``controller`` is the process of ``forge run`` itself."""

Data = Literal["checkpoint", "weights"]


class ChaosSettings(Settings):
    """Which faults to inject, and how many of each. Steps and moments are drawn from the seed."""

    seed: int = Field(default=0, ge=0, description="of the schedule")
    kill: dict[Service, NonNegativeInt] = Field(
        default_factory=dict,
        description="service: how many times one of its processes is killed (SIGKILL)",
    )
    delay: dict[Service, NonNegativeInt] = Field(
        default_factory=dict,
        description="service: how many times its processes are stopped (SIGSTOP) for delay_seconds",
    )
    delay_seconds: float = Field(default=1.0, gt=0, description="seconds that a delay takes")
    disconnect: dict[Service, NonNegativeInt] = Field(
        default_factory=dict,
        description="service: how many times the connections of one of its processes are shut down",
    )
    corrupt: dict[Data, NonNegativeInt] = Field(
        default_factory=dict,
        description="what: how many times one bit of it is flipped; checkpoint: a file of the one "
        "just written; weights: shared memory on its way to the generator",
    )
