"""When each fault happens: drawn from the seed, the same in every run of the same length."""

from __future__ import annotations

import random
from dataclasses import dataclass

from forge_chaos.settings import ChaosSettings

KINDS = ("kill", "delay", "disconnect", "corrupt")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of the schedule.

    Args:
        number: in the schedule, from 0; what a resumed run knows it by.
        kind: of ``KINDS``.
        target: service, ``checkpoint`` or ``weights``.
        step: of the run, in which it happens.
        moment: part of a step's duration after which it happens, from 0 to 1.
        draw: seed of the choices that are made when it happens.
    """

    number: int
    kind: str
    target: str
    step: int
    moment: float
    draw: int


def schedule(settings: ChaosSettings, steps: int) -> list[Fault]:
    """All faults of a run, by step. The first step and the last are left alone.

    In the first there is no duration to take a part of; after the last there is no step that would
    show the consequence.
    """
    draw = random.Random(f"chaos-{settings.seed}")
    wanted = [
        (kind, target)
        for kind in KINDS
        for target, count in sorted(getattr(settings, kind).items())
        for _ in range(count)
    ]
    faults = [
        Fault(
            number=number,
            kind=kind,
            target=target,
            step=draw.randint(2, max(2, steps - 1)),
            moment=draw.random(),
            draw=draw.getrandbits(32),
        )
        for number, (kind, target) in enumerate(wanted)
    ]
    return sorted(faults, key=lambda fault: (fault.step, fault.moment))
