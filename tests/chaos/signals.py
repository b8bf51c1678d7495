"""Signals at random moments, some of them kills, some twice; then resumed until the end."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from tests.chaos.cases import Area, Command, Outcome, Wrong, speaks_clearly
from tests.chaos.subject import check_equal, resume, run_of, start

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
LIMIT = 60.0
"""Seconds within which a signal ends a run of steps that take milliseconds."""


def case(draw: random.Random, number: int, folder: Path) -> str:
    """One to three signals, each to a process of its own; the last process is left alone."""
    sent = []
    for _ in range(draw.randint(1, 3)):
        run = run_of(folder)
        command = start(folder) if run is None else resume(folder, run)
        chosen = draw.choice(SIGNALS)
        moment = draw.uniform(0.0, 1.5)
        twice = draw.random() < 0.2
        sent.append(f"{chosen.name}{' twice' if twice else ''}")
        outcome = disturbed(command, chosen, moment, twice)
        if outcome.code == 0:
            break
        speaks_clearly(outcome, but=-chosen)
        # Until a run begins, a signal other than ctrl-C does what it does to any program.
        begun = "  stage " in outcome.out
        if outcome.code not in (130, -signal.SIGKILL) and (begun or outcome.code != -chosen):
            raise Wrong(f"{chosen.name} after {moment:.3f} s: {outcome}")
    run = run_of(folder)
    outcome = start(folder).end() if run is None else resume(folder, run).end()
    if outcome.code != 0:
        raise Wrong(f"after {', '.join(sent)}: cannot be resumed: {outcome}")
    finished = run_of(folder)
    assert finished is not None
    check_equal(finished)
    return " then ".join(sent) if len(sent) == 1 else f"{len(sent)} signals"


def disturbed(command: Command, chosen: signal.Signals, moment: float, twice: bool) -> Outcome:
    """Send the signal when the command has run for a moment, and wait for its end."""
    time.sleep(moment)
    command.send(chosen)
    if twice:
        time.sleep(0.01)
        command.send(chosen)
    return command.end(moment + LIMIT)


AREA = Area(
    name="signals",
    about="INT, TERM, HUP and KILL at random moments, then resumed",
    case=case,
    ci=24,
)
