"""Many episodes: memory, descriptors and threads stay what they were."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

from forge_core import Forge, StepRecord, hookimpl
from forge_testing.runs import small_config, write_config
from tests.chaos.cases import Area, Command, Wrong
from tests.chaos.subject import Subject

STEPS, EPISODES = 120, 32
GROWTH = 4.0
"""MiB by which the second half may be above the first: an allocator's noise, not a leak that a run
of days would notice."""


class Meter(Subject):
    """Notes after each step what the process holds."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @hookimpl
    def forge_step_finished(self, record: StepRecord) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        size = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        descriptors = len(os.listdir("/proc/self/fd"))
        with self._file.open("a") as file:
            print(record.step, size, descriptors, threading.active_count(), file=file)


def case(draw: random.Random, number: int, folder: Path) -> str:
    """One run of many short steps."""
    config: dict[str, Any] = small_config(
        rewards={"digits": {}},
        recipe={"use": "grpo", "group_size": 8},
        trackers={"console": {"view": "plain"}, "jsonl": {}},
        training={
            "steps": STEPS,
            "batch_size": EPISODES,
            "learning_rate": 0.001,
            "seed": draw.randrange(2**31),
        },
        checkpointing={"output_dir": str(folder / "runs"), "save_interval": 20},
    )
    file = write_config(config, folder / "config.yaml")
    meter = folder / "meter.txt"
    outcome = Command(["run", str(file)], folder, Forge(plugins=[Meter(meter)])).end()
    if outcome.code != 0:
        raise Wrong(str(outcome))
    rows = [tuple(map(float, line.split())) for line in meter.read_text().splitlines()]
    if len(rows) != STEPS:
        raise Wrong(f"{len(rows)} steps of {STEPS}")
    early, late = rows[STEPS // 3 : STEPS // 2], rows[-STEPS // 6 :]
    for column, what, more in ((1, "MiB", GROWTH), (2, "descriptors", 1.0), (3, "threads", 1.0)):
        before, after = (max(row[column] for row in part) for part in (early, late))
        if after > before + more:
            raise Wrong(f"grows: {before:.1f} {what} became {after:.1f}")
    return f"{rows[-1][1] - early[0][1]:+.0f} MiB"


AREA = Area(
    name="soak",
    about="episodes of runs whose memory, descriptors and threads stay flat",
    case=case,
    ci=1,
    count=STEPS * EPISODES,
)
