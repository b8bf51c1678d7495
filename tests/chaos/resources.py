"""A run that is short of disk, files, memory or shared memory, or whose clock jumps."""

from __future__ import annotations

import errno
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos import faults
from tests.chaos.cases import Area, Outcome, Wrong, limited, speaks_clearly
from tests.chaos.subject import World, check_equal, copy_of, resume, run_of, start

Shortage = tuple[str, Callable[[], None], dict[str, object]]
"""In words; what sets it, in the process of the run; changes of the config."""

Kind = Callable[[random.Random, Path], Shortage]

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE, errno.EROFS)


def case(draw: random.Random, number: int, folder: Path) -> str:
    """One shortage; then the run goes on without it, where it did not finish."""
    kind = KINDS[number % len(KINDS)]
    tried, before, changes = kind(draw, folder)
    if "transport" in changes or draw.random() < 0.6 or "full disk" not in tried:
        command = start(folder, before=before, **changes)
    else:
        command = resume(folder, copy_of(World.halfway, folder), before=before)
    outcome = command.end()
    try:
        _judge(outcome, folder)
    except Wrong as error:
        wrong = Wrong(f"{tried}: {error}")
        wrong.tried = tried.partition(",")[0]  # type: ignore[attr-defined]
        raise wrong from error
    return tried.partition(",")[0]


def _judge(outcome: Outcome, folder: Path) -> None:
    native = outcome.code in (-6, -11, -7, 134)  # a library that cannot allocate ends the process
    if not native:
        speaks_clearly(outcome)
    run = run_of(folder)
    if outcome.code == 0:
        if run is None:
            raise Wrong(f"exit code 0 and no run: {outcome}")
        _compare(run, outcome)
        return
    drafts = [str(path) for path in folder.glob("runs/*/checkpoints/.*")]
    if drafts and not native:
        raise Wrong(f"left {drafts}: {outcome}")
    if run is not None:
        again = resume(folder, run).end()
        if again.code != 0:
            raise Wrong(f"{outcome}; and cannot be resumed: {again}")
        _compare(run, outcome)


def _compare(run: Path, outcome: Outcome) -> None:
    """Weights are always those of the undisturbed run; records too, unless their loss was told."""
    check_equal(run, only=("weights", "outcome"))
    if "jsonl" not in outcome.err + outcome.out:
        check_equal(run)


def full_disk(draw: random.Random, folder: Path) -> Shortage:
    """From some call on, every call that needs space fails."""
    at = draw.randint(1, len(World.calls["run"]))
    fault = faults.Fault(folder / "runs", at=at, mode="fail on", error=errno.ENOSPC)
    return f"full disk, from call {at} on", fault.arm, {}


def failing_call(draw: random.Random, folder: Path) -> Shortage:
    """One call fails, and no other."""
    at, error = draw.randint(1, len(World.calls["run"])), draw.choice(ERRORS)
    fault = faults.Fault(folder / "runs", at=at, mode="fail", error=error)
    return f"a failing call, {errno.errorcode[error]} in call {at}", fault.arm, {}


def full_shared_memory(draw: random.Random, folder: Path) -> Shortage:
    """The weights find no room on their way."""
    at = draw.randint(1, 12)
    fault = faults.Fault(Path("/dev/shm/forge"), at=at, mode="fail on", error=errno.ENOSPC)
    changes: dict[str, object] = {"transport": {"use": "shm"}}
    return f"full shared memory, from call {at} on", fault.arm, changes


def small_files(draw: random.Random, folder: Path) -> Shortage:
    """No file may grow beyond a limit."""
    size = draw.choice([8_000, 20_000, 60_000, 90_000])
    before = limited(resource.RLIMIT_FSIZE, size)
    return f"small files, at most {size} bytes", before, {}


def few_descriptors(draw: random.Random, folder: Path) -> Shortage:
    """Few files may be open at once."""
    count = draw.randint(6, 40)
    return f"few descriptors, {count}", limited(resource.RLIMIT_NOFILE, count), {}


def little_memory(draw: random.Random, folder: Path) -> Shortage:
    """The address space may grow by little."""
    megabytes = draw.choice([0, 1, 4, 16, 64, 128])

    def before() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * os.sysconf("SC_PAGE_SIZE") + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    return f"little memory, {megabytes} MiB more", before, {}


def jumping_clock(draw: random.Random, folder: Path) -> Shortage:
    """The wall clock jumps between any two readings."""
    jumps = random.Random(draw.random())

    def before() -> None:
        true = time.time
        time.time = lambda: max(0.0, true() + jumps.uniform(-4e8, 4e8))

    return "jumping clock", before, {}


KINDS: tuple[Kind, ...] = (
    full_disk, failing_call, full_disk, failing_call, full_shared_memory, small_files,
    few_descriptors, little_memory, jumping_clock,
)  # fmt: skip

AREA = Area(
    name="resources",
    about="full disk, calls that fail, limits on files and memory, a clock that jumps",
    case=case,
    ci=27,
    needs=faults.missing,
)
