"""A file of a run folder is damaged before the run is resumed, or its weights are used."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.cases import Area, Command, Wrong, speaks_clearly
from tests.chaos.subject import World, check_equal, copy_of, resume

DAMAGES = ("flipped bit", "zeroed block", "truncated", "emptied", "deleted", "other bytes")
RECORDS = ("episodes.jsonl", "events.jsonl", "summary.json", "rewards.log", "run.lock", "logs")
"""Files that nothing is computed from: damage to them may cost what they held, no more."""


PROMPT = ("1+2=", "--temperature", "0")


def case(draw: random.Random, number: int, folder: Path) -> str:
    """One file, one damage, one use of the folder."""
    generates = number % 5 == 4
    run = copy_of(World.undisturbed if generates else World.halfway, folder)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    file = files[number % len(files)]
    how = DAMAGES[number // len(files) % len(DAMAGES)]
    damage(file, how, draw)
    name = str(file.relative_to(run))
    try:
        if generates:
            _generate(folder, run)
        else:
            _go_on(folder, run, name)
    except Wrong as error:
        wrong = Wrong(f"{name}: {how}: {error}")
        wrong.tried = how  # type: ignore[attr-defined]
        raise wrong from error
    return how


def _go_on(folder: Path, run: Path, name: str) -> None:
    outcome = resume(folder, run).end()
    speaks_clearly(outcome)
    if outcome.code == 0 and not name.startswith(RECORDS):
        check_equal(run, only=("metrics", "weights", "outcome"))
    if outcome.code != 0 and name.startswith(RECORDS):
        raise Wrong(f"the run ends for a file that nothing is computed from: {outcome}")


def _generate(folder: Path, run: Path) -> None:
    outcome = Command(["generate", str(run), *PROMPT], folder, World.app).end()
    speaks_clearly(outcome)
    # Falling back to the checkpoint before is right if it is said.
    told = "using step" in outcome.err
    if outcome.code == 0 and outcome.out != World.generated and not told:
        raise Wrong(f"generate says {outcome.out!r}, not {World.generated!r}")


def text_of_undisturbed(scratch: Path) -> str:
    """What ``forge generate`` prints of the run that nothing was done to."""
    arguments = ["generate", str(World.undisturbed), *PROMPT]
    outcome = Command(arguments, scratch, World.app).end()
    assert outcome.code == 0, outcome
    return outcome.out


def damage(file: Path, how: str, draw: random.Random) -> None:
    """Do it. A file that is empty already is given a byte that does not belong there."""
    content = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
        return
    if not content:
        content += b"\0"
    elif how == "flipped bit":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "zeroed block":
        begin = draw.randrange(len(content))
        size = min(8192, len(content) - begin)
        content[begin : begin + size] = bytes(size)
    elif how == "truncated":
        del content[draw.randrange(len(content)) :]
    elif how == "emptied":
        content.clear()
    else:
        content = bytearray(draw.randbytes(len(content)))
    file.write_bytes(content)


AREA = Area(
    name="damage",
    about="files of a run folder damaged before it is resumed or asked for text",
    case=case,
    ci=60,
)
