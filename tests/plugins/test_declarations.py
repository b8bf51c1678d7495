"""In every package ``plugin.py`` declares, ``settings.py`` sets, and nothing else does either.

A plugin of one module has everything in it. A library without a plugin may have components that no
config names, for services of its own, beside what they are for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    file.parent
    for folder in ("plugins", "examples")
    for file in (ROOT / folder).glob("*/*/__init__.py")
    if file.parent.name != "forge_testing"  # its suites have components to judge with
)


def nodes(package: Path) -> Iterator[tuple[Path, ast.AST]]:
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield file, node


def name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_there_are_packages_to_look_through() -> None:
    assert {"forge_torch", "forge_run", "acme_ppo"} <= {package.name for package in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_plugin_declares_and_settings_sets(package: Path) -> None:
    wrong = []
    for file, node in nodes(package):
        place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and name(node.func).endswith("Component"):
            if file != package / "plugin.py" and (package / "plugin.py").exists():
                wrong.append(f"{place}: a component; {package.name}/plugin.py declares them")
            [build] = [word.value for word in node.keywords if word.arg == "build"]
            if not isinstance(build, ast.Constant):
                wrong.append(f"{place}: build is no name; write 'module:attribute'")
        derives = [name(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if any(base.endswith("Settings") for base in derives) and file != package / "settings.py":
            wrong.append(f"{place}: settings; {package.name}/settings.py has them")
    assert not wrong, "\n".join(wrong)
