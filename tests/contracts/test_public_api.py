"""What ``forge_core`` exports: complete, frozen, and all that our own plugins use.

``python tests/contracts/test_public_api.py`` writes the frozen listing.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "forge_core"
LISTING = Path(__file__).with_name("public_api.txt")
DESIGN = ROOT / "docs" / "design.md"

ENFORCEMENT = {"blame", "built", "target", "conversion"}
"""Modules of the contracts by which the kernel holds components to the contracts."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def exported() -> set[str]:
    for node in parse(KERNEL / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError("forge_core has no __all__")


def public_modules() -> list[Path]:
    files = (KERNEL / "contracts").glob("*.py")
    return [*sorted(file for file in files if file.stem not in ENFORCEMENT), KERNEL / "app.py"]


def definitions(file: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Top-level classes, functions and assignments that are not private, by name."""
    for node in parse(file).body:
        if isinstance(node, Definition):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [ast.unparse(target) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            names = [ast.unparse(node.target)]
        else:
            continue
        yield from ((name, node) for name in names if not name.startswith("_"))


# The exports are complete.


def test_every_class_and_function_of_the_contracts_is_exported() -> None:
    names = exported()
    missing = [
        f"{file.stem}.{name}"
        for file in public_modules()
        if file.parent.name == "contracts"
        for name, node in definitions(file)
        if isinstance(node, Definition) and name not in names and not name.startswith("forge_")
    ]
    assert not missing, "add these to forge_core/__init__.py"


def test_every_exported_name_can_be_imported() -> None:
    import forge_core

    assert set(forge_core.__all__) == exported()
    for name in forge_core.__all__:
        assert getattr(forge_core, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = forge_core.Nothing  # type: ignore[attr-defined]


# Our own plugins use nothing else.


def helper_packages() -> list[str]:
    """Those that ``docs/design.md`` names."""
    section = DESIGN.read_text(encoding="utf-8").split("## The public API")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`forge_core\..*?) \|", section, re.MULTILINE)
    return [helper for row in rows for helper in re.findall(r"`([\w.]+)`", row)]


def is_public(module: str) -> bool:
    return module == "forge_core" or any(
        module == helper or module.startswith(f"{helper}.") for helper in helper_packages()
    )


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of each import from the kernel."""
    names = exported()
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "forge_core":
            modules = [
                "forge_core" if alias.name in names else f"forge_core.{alias.name}"
                for alias in node.names
            ]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        yield from ((node.lineno, name) for name in modules if name.split(".")[0] == "forge_core")


@pytest.mark.parametrize(
    "plugin", sorted((ROOT / "plugins").glob("forge_*")), ids=lambda folder: folder.name
)
def test_plugins_and_their_tests_import_the_public_api_only(plugin: Path) -> None:
    private = [
        f"{file.relative_to(ROOT)}:{line}: {module}"
        for file in sorted(plugin.rglob("*.py"))
        for line, module in imports(file)
        if not is_public(module)
    ]
    assert not private, "docs/design.md says what is public"


def test_the_helper_packages_exist() -> None:
    helpers = helper_packages()
    assert "forge_core.streams" in helpers
    for helper in helpers:
        place = ROOT / helper.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), helper


# The listing is frozen.


class _WithoutDescriptions(ast.NodeTransformer):
    """The words that explain a setting may change."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [each for each in node.keywords if each.arg != "description"]
        return node


def _code(node: ast.AST) -> str:
    return ast.unparse(_WithoutDescriptions().visit(node))


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = [ast.unparse(decorator) for decorator in node.decorator_list]
    words = [f"@{mark}" for mark in marks if mark in ("property", "classmethod", "staticmethod")]
    words.append("async def" if isinstance(node, ast.AsyncFunctionDef) else "def")
    returns = f" -> {_code(node.returns)}" if node.returns is not None else ""
    return f"{' '.join(words)} {node.name}({_code(node.args)}){returns}"


def _members(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            name, line = each.name, _function(each)
        elif isinstance(each, ast.AnnAssign):
            name, line = ast.unparse(each.target), _code(each)
        elif isinstance(each, ast.Assign):
            name, line = ast.unparse(each.targets[0]), _code(each)
        else:
            continue
        special = name.startswith("__") and name != "__post_init__"
        if special or not name.startswith("_"):
            yield line


def listing() -> str:
    """Every public name with its signature or fields, one entry a paragraph, by name."""
    names, entries = exported(), dict[str, str]()
    for file in public_modules():
        for name, node in definitions(file):
            if name not in names and not name.startswith("forge_"):
                continue
            if isinstance(node, ast.ClassDef):
                marks = [ast.unparse(each) for each in node.decorator_list]
                dataclass = next((f"@{mark} " for mark in marks if "dataclass" in mark), "")
                bases = ", ".join(map(ast.unparse, node.bases))
                head = f"{dataclass}class {name}({bases})" if bases else f"{dataclass}class {name}"
                entries[name] = "\n    ".join([head, *_members(node)])
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                entries[name] = ("hook " if name.startswith("forge_") else "") + _function(node)
            else:
                entries[name] = _code(node)
    missing = names - entries.keys() - {"__version__"}
    assert not missing, f"exported, and defined in no public module: {sorted(missing)}"
    return "\n\n".join(entries[name] for name in sorted(entries)) + "\n"


def test_the_public_api_is_what_it_was() -> None:
    frozen, now = LISTING.read_text(encoding="utf-8").splitlines(), listing().splitlines()
    changes = "\n".join(difflib.unified_diff(frozen, now, "frozen", "now", lineterm="", n=1))
    assert not changes, (
        "the public API has changed: add a line to CHANGELOG.md that says what plugin authors do, "
        f"then run `python tests/contracts/{Path(__file__).name}`\n{changes}"
    )


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
