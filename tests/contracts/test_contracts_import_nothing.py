"""``forge_core/contracts`` is the lowest level: it imports nothing else of the kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import forge_core

CONTRACTS = Path(forge_core.__file__).parent / "contracts"


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import, those for type checking and inside functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}:{node.lineno}: a relative import"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("file", sorted(CONTRACTS.glob("*.py")), ids=lambda file: file.stem)
def test_contracts_import_nothing_else_of_the_kernel(file: Path) -> None:
    upward = [
        f"{file.name}:{line}: {module}"
        for line, module in imported(file)
        if module.split(".")[0] == "forge_core" and not module.startswith("forge_core.contracts.")
    ]
    assert not upward
