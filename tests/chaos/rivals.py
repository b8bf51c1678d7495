"""Several processes that go on with one run at once: one does, the others are refused."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from tests.chaos.cases import Area, Wrong, speaks_clearly
from tests.chaos.subject import World, check_equal, copy_of, resume


def case(draw: random.Random, number: int, folder: Path) -> str:
    """Two or three at random moments; the first may be stopped for a while, or killed."""
    run = copy_of(World.halfway, folder)
    count = draw.randint(2, 3)
    rivals = []
    for index in range(count):
        place = folder / str(index)
        place.mkdir()
        rivals.append(resume(place, run))
        time.sleep(draw.choice([0.0, 0.0, draw.uniform(0, 1.2)]))
    what = draw.choice(["undisturbed", "the first is stopped", "the first is killed"])
    if what == "the first is stopped":
        rivals[0].send(signal.SIGSTOP)
        time.sleep(draw.uniform(0.1, 1.0))
        rivals[0].send(signal.SIGCONT)
    elif what == "the first is killed":
        rivals[0].send(signal.SIGKILL)
    outcomes = [rival.end() for rival in rivals]
    for outcome in outcomes:
        if outcome.code != -signal.SIGKILL:
            speaks_clearly(outcome)
    # One that comes when another is done finds nothing to do, which is right.
    if not any(outcome.code in (0, -signal.SIGKILL) for outcome in outcomes):
        raise Wrong(f"{what}: none went on: " + " | ".join(map(str, outcomes)))
    if any(outcome.code not in (0, 2, -signal.SIGKILL) for outcome in outcomes):
        raise Wrong(f"{what}: neither done nor refused: " + " | ".join(map(str, outcomes)))
    last = resume(folder, run).end()
    if last.code != 0:
        raise Wrong(f"{what}: cannot be resumed: {last}")
    check_equal(run)
    return f"{count} rivals, {what}"


AREA = Area(
    name="rivals",
    about="several processes that resume one run at once",
    case=case,
    ci=8,
)
