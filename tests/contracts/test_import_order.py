"""Parts of the kernel and the packages of ``plugins/`` import in the order of ``docs/design.md``.

A part is a folder of ``forge_core`` or a module beside the folders. Imports for type checking and
inside functions count.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

import forge_core

KERNEL = Path(forge_core.__file__).parent
PAGE = KERNEL.parent / "docs" / "design.md"
PLUGINS = KERNEL.parent / "plugins"
PACKAGES = {folder.name for folder in PLUGINS.glob("forge_*")}

UPWARD = 0
"""Imports against the order. Three are the most that the design allows."""


def levels(section: str = "Import order") -> list[list[str]]:
    """A table on the page, from the lowest up: the names of each row."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
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


# The packages under plugins/.


def packages_imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Place and package of every import of one of ours in a folder."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                package = name.partition(".")[0]
                if package in PACKAGES and package != folder.name:
                    assert isinstance(node, ast.ImportFrom | ast.Import)
                    yield f"{file.relative_to(folder.parent)}:{node.lineno}: {package}", package


def required(package: str) -> set[str]:
    """Packages of ours that a package's metadata names, those of its extras too."""
    metadata = tomllib.loads((PLUGINS / package / "pyproject.toml").read_text(encoding="utf-8"))
    project = metadata["project"]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {Requirement(line).name for line in lines}
    return {name.replace("forge-rl-", "forge_") for name in names} & PACKAGES


def test_the_page_has_every_package_once() -> None:
    named = [name for row in levels("The order of the packages") for name in row]
    assert sorted(named) == sorted(PACKAGES)


def test_the_kernel_imports_no_package() -> None:
    assert not [place for place, _ in packages_imported(KERNEL)]


def test_packages_import_from_rows_above() -> None:
    rows = levels("The order of the packages")
    height = {name: index for index, row in enumerate(rows) for name in row}
    wrong = [
        place
        for package in sorted(PACKAGES)
        for place, target in packages_imported(PLUGINS / package / package)
        if height[target] >= height[package]
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_require_the_packages_that_they_import() -> None:
    wrong = {}
    for package in sorted(PACKAGES):
        used = {target for _, target in packages_imported(PLUGINS / package / package)}
        if missing := used - required(package):
            wrong[package] = sorted(missing)
    assert not wrong
