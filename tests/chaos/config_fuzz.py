"""Mutated config files and command lines: refused in one line or taken, never executed."""

from __future__ import annotations

import copy
import random
import shlex
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.cases import Area, Command, Wrong, speaks_clearly
from tests.chaos.subject import World, subject_config

BATCH = 10
"""Configs in a case: they share its process."""

SECONDS = 20.0
"""More than this for a config that is refused or checked is a way to stop a machine."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, -(2**63), 10**400, 0.5, 1e308, float("nan"), float("inf"),
    -float("inf"), "", " ", "null", "yes", "1e-3", "0x10", "../../etc/passwd", "/dev/full", "a=b",
    "ü€😀", "\x00", "\x1b[2J", "${HOME}", "$(touch owned)", "`touch owned`", "{{7*7}}", "%s%n",
    [], [1], [[]], {}, {"use": "nothing"}, {"use": None}, {"use": ["grpo"]}, "A" * 5000,
    list(range(300)), {str(number): number for number in range(300)}, "__import__('os')",
)  # fmt: skip

TEXTS = (
    "!!python/object/apply:os.system ['touch owned']",
    "!!python/object/new:os.system ['touch owned']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!binary aGVsbG8=",
    "!!timestamp 2001-12-14",
    "!!set {a, b}",
    "!unknown tag",
    "*nobody",
    "&a [*a]",
    "{<<: *nobody}",
    "? [a, b]\n: c",
    "|\n  block",
    "[" * 300 + "]" * 300,
    "{" * 200,
    "&a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n"
    "c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n"
    "e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\n"
    "g: [*f, *f, *f, *f, *f, *f, *f, *f]",
    "'unclosed",
    "\t- tab",
    "a: b: c",
    "0o777",
    "1_000",
    ".inf",
    "12:30:45",
    "=",
)  # fmt: skip

OPTIONS = (
    "--dry-run", "--debug", "--nproc-per-node", "--loss", "--generator", "--trainer", "--runtime",
    "--transport", "--resume", "--nothing", "-p", "no:torch", "no:", "-h", "--", "-", "", "=", "a=",
    "=a", "a.b=c", "~training", "stages.sft.training.steps=1", "rewards=null", "stages=null",
    "training.steps=1e99", "training.optimizer.betas=[5,7]", "training.learning_rate=.inf",
    "model.path=/", "model.path=.", "recipe.use=sft", "recipe.use=grpo", "loss.use=grpo",
    "dataset.path=/dev/zero",
    "dataset={use: jsonl, path: nothing.jsonl}", "trackers={}", "trackers.console.view=live",
)  # fmt: skip

COMMANDS = (
    ["run", "FILE", "--dry-run"],
    ["plan", "FILE"],
    ["config", "explain", "training.steps", "FILE"],
    ["config", "show", "FILE"],
)


def case(draw: random.Random, number: int, folder: Path) -> str:
    """A handful of mutants, each given to one command."""
    for index in range(BATCH):
        place = folder / str(index)
        place.mkdir()
        _mutant(draw, place)
    return f"{BATCH} configs"


def _mutant(draw: random.Random, folder: Path) -> None:
    file = folder / "mutant.yaml"
    file.write_bytes(mutated(draw, folder))
    command = [str(file) if word == "FILE" else word for word in draw.choice(COMMANDS)]
    if draw.random() < 0.4:
        if command[0] != "run":
            command = ["run", str(file), "--dry-run"]
        for _ in range(draw.randint(1, 3)):
            command.insert(draw.randint(1, len(command)), _argument(draw))
        if "--dry-run" not in command:
            command.append("--dry-run")
        if "--" in command:  # what follows is no option, so that this one has to come before
            command.remove("--dry-run")
            command.insert(1, "--dry-run")
    if "--dry-run" not in command and command[0] == "run":
        command.append("--dry-run")
    shown = f"{shlex.join(command)[:300]} in {folder}"
    try:
        outcome = Command(command, folder, World.app).end(SECONDS)
        if "--debug" not in command:
            speaks_clearly(outcome)
        if outcome.code not in (0, 2):
            raise Wrong(f"not exit code 0 or 2: {outcome}")
    except Wrong as error:
        raise Wrong(f"{shown}: {error}") from error
    left = sorted(path.name for path in folder.rglob("*"))
    if left != sorted([".stderr", ".stdout", "mutant.yaml"]):
        raise Wrong(f"{shown}: left {left}")


def _argument(draw: random.Random) -> str:
    if draw.random() < 0.6:
        return draw.choice(OPTIONS).replace("\0", "")
    keys = [".".join(map(str, path)) for path in paths(subject_config(Path("runs")))]
    value = draw.choice([*map(str, VALUES), *TEXTS])
    return f"{draw.choice(keys)}={value}".replace("\0", "").replace("\x1b", "")


def mutated(draw: random.Random, folder: Path) -> bytes:
    """A config file with one to four mutations, of its tree, its text or its bytes."""
    tree = subject_config(folder / "runs")
    for _ in range(draw.randint(0, 3)):
        _change(draw, tree)
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    kind = draw.randrange(4)
    if kind == 0:
        lines = text.splitlines()
        place = draw.randrange(len(lines))
        lines[place] = lines[place].partition(":")[0] + ": " + draw.choice(TEXTS)
        text = "\n".join(lines)
    elif kind == 1:
        lines = text.splitlines()
        chosen = draw.randrange(len(lines))
        change = draw.randrange(3)
        if change == 0:
            lines.insert(draw.randrange(len(lines)), lines[chosen])
        elif change == 1:
            lines[chosen] = " " * draw.randint(1, 5) + lines[chosen]
        else:
            del lines[chosen]
        text = "\n".join(lines)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if kind == 2:
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _change(draw: random.Random, tree: dict[str, Any]) -> None:
    """Replace, delete, rename or add one key, at any depth."""
    path = draw.choice(list(paths(tree)))
    parent: Any = tree
    for part in path[:-1]:
        parent = parent[part]
    key, change = path[-1], draw.randrange(4)
    if change == 0:
        parent[key] = _value(draw)
    elif change == 1:
        del parent[key]
    elif change == 2:
        parent[draw.choice([f"{key}x", "", "use", 1, None, True, "a.b"])] = parent.pop(key)
    else:
        parent[draw.choice(["use", "extra", "weight", "steps", "__class__"])] = _value(draw)


def _value(draw: random.Random) -> Any:
    """One that the next change may change, without those of later cases."""
    return copy.deepcopy(draw.choice(VALUES))


def paths(tree: Any, above: tuple[Any, ...] = ()) -> Any:
    """Every key of a tree, as the way to it."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


AREA = Area(
    name="config",
    about="mutated config files and command lines",
    case=case,
    ci=40,
    count=BATCH,
)
