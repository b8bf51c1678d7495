"""Parts of the kernel import what stands below them: the order is that of ``docs/design.md``.

A part is a folder of ``forge_core`` or a module beside the folders. Imports for type checking and
inside functions count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import forge_core

KERNEL = Path(forge_core.__file__).parent
PAGE = KERNEL.parent / "docs" / "design.md"

UPWARD = 0
"""Imports against the order. Three are the most that the design allows."""


def levels() -> list[list[str]]:
    """The table on the page, from the lowest up: the parts of each level."""
    text = PAGE.read_text(encoding="utf-8").partition("## Import order\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row[1]) for row in rows] == list(range(1, len(rows) + 1))
    return [[part.rstrip("/") for part in re.findall(r"`([^`]+)`", row[2])] for row in rows]


def part(path: Path) -> str:
    return path.relative_to(KERNEL).parts[0].removesuffix(".py")


def parts() -> set[str]:
    return {part(file) for file in KERNEL.rglob("*.py")}


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Line and part of every import from the kernel."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "forge_core":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in parts())
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forge_core."):
            yield node.lineno, str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("forge_core."):
                    yield node.lineno, alias.name.split(".")[1]


def edges() -> dict[tuple[str, str], list[str]]:
    """(importer, imported) -> where; imports within a part are left out."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(KERNEL.rglob("*.py")):
        for line, target in imported(file):
            if target != part(file):
                place = f"{file.relative_to(KERNEL)}:{line} imports {target}"
                found.setdefault((part(file), target), []).append(place)
    return found


def test_the_page_has_every_part_once() -> None:
    named = [name for level in levels() for name in level]
    assert sorted(named) == sorted(parts() - {"__init__", "__main__"})


def test_imports_go_down() -> None:
    height = {name: index for index, level in enumerate(levels()) for name in level}
    upward = [
        place
        for (importer, target), places in edges().items()
        if importer in height and height[target] > height[importer]
        for place in places
    ]
    assert len(upward) <= UPWARD, "\n".join(upward)


def test_no_part_imports_itself_through_others() -> None:
    below: dict[str, set[str]] = {name: set() for name in parts()}
    for importer, target in edges():
        below[importer].add(target)
    # Taking away what imports nothing more, again and again, leaves the circles.
    while free := {name for name, targets in below.items() if not targets & below.keys()}:
        below = {name: targets for name, targets in below.items() if name not in free}
    assert not below
