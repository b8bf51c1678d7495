"""A small run of tasks that are all different, without faults and with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forge_testing.runs import Run, small_config


@pytest.fixture
def disturbed(runs: Callable[..., Run]) -> Callable[..., Run]:
    """``disturbed(faults, *arguments, name="run", **sections)``: the run has begun.

    ``faults`` are settings of tracker ``chaos``; None: the tracker is not there.
    """

    def start(
        faults: dict[str, Any] | None, *arguments: str, name: str = "run", **sections: Any
    ) -> Run:
        trackers: dict[str, Any] = {"console": {"view": "plain"}, "jsonl": {}}
        if faults is not None:
            trackers["chaos"] = faults
        config = {
            "trackers": trackers,
            "training": {"steps": 8, "batch_size": 32, "learning_rate": 0.003},
            "checkpointing": {"save_interval": 1},
            "generator": {"isolate": True},
            "trainer": {"isolate": True},
        }
        return runs(small_config(**config | sections), *arguments, name=name)

    return start
