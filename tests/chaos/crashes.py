"""The process is killed at one of the calls by which a run or a resume changes its folder."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos import faults
from tests.chaos.cases import Area, Wrong
from tests.chaos.subject import World, check_equal, copy_of, finish, resume, run_of, start

KILLS = ("before", "torn", "after")


def case(draw: random.Random, number: int, folder: Path) -> str:
    """Kill at the point of this number, resume, compare."""
    every = points()
    phase, at, mode = every[number % len(every)]
    fault = faults.Fault(folder / "runs", at=at, mode=mode)
    run: Path | None
    if phase == "run":
        start(folder, before=fault.arm).end()
        run = run_of(folder)
    else:
        run = copy_of(World.halfway, folder)
        resume(folder, run, before=fault.arm).end()
    tried = f"{phase}, killed {mode} {fault.where.split(' ')[0] or 'nothing'}"
    try:
        if not fault.where:
            if run is None:
                raise Wrong("there was no such call, and no run")
            check_equal(run)
        elif run is not None:
            finish(folder, run)
    except Wrong as error:
        wrong = Wrong(f"killed {mode} call {at} of the {phase} ({fault.where}): {error}")
        wrong.tried = tried  # type: ignore[attr-defined]
        raise wrong from error
    return tried


def points() -> list[tuple[str, int, str]]:
    """Every point of a run and of a resume, in an order that depends on the seed alone."""
    points = [
        (phase, at, mode)
        for phase, kinds in World.calls.items()
        for at, kind in enumerate(kinds, start=1)
        for mode in KILLS
        if mode != "torn" or kind == "w"
    ]
    # All cases of a campaign share the order, so that as many cases as points are all of them.
    random.Random(len(points)).shuffle(points)
    return points


def count_calls(scratch: Path) -> dict[str, str]:
    """Do both once without a disturbance, and note each call."""
    found = {}
    for phase in ("run", "resume"):
        folder = scratch / f"count-{phase}"
        folder.mkdir()
        fault = faults.Fault(folder / "runs")
        if phase == "run":
            command = start(folder, before=fault.arm)
        else:
            command = resume(folder, copy_of(World.halfway, folder), before=fault.arm)
        outcome = command.end()
        assert outcome.code == 0, outcome
        found[phase] = fault.kinds
    return found


AREA = Area(
    name="crashes",
    about="killed at every write, sync, rename and unlink of a run and of a resume, then resumed",
    case=case,
    ci=40,
    needs=faults.missing,
)
