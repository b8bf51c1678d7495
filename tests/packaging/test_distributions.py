"""What the distributions hold, and what installing them brings."""

from __future__ import annotations

import ast
import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from forge_core import Forge

ROOT = Path(__file__).parents[2]
OURS = {
    tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]: file.parent
    for file in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
}
"""Distribution -> its folder."""

STANDARD = "forge-rl-standard"


def build(folder: Path, out: Path) -> tuple[Path, Path]:
    """The wheel and the source archive."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def in_wheel(wheel: Path) -> set[str]:
    """Names at the top, without the folder of metadata."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {PurePosixPath(name).parts[0] for name in archive.namelist()}
    return {top for top in tops if not top.endswith(".dist-info")}


def in_source(archive: Path) -> set[str]:
    """Names at the top, without those that every source archive has."""
    with tarfile.open(archive) as opened:
        tops = {PurePosixPath(name).parts[1] for name in opened.getnames()}
    return tops - {".gitignore", "PKG-INFO", "pyproject.toml", "README.md", "LICENSE"}


def requirements(wheel: Path) -> list[Requirement]:
    """What installing it brings directly, extras left out."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    found = map(Requirement, metadata.get_all("Requires-Dist") or [])
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


def test_the_kernel_is_by_itself_and_needs_nothing_heavy(tmp_path: Path) -> None:
    wheel, source = build(ROOT, tmp_path)
    assert in_wheel(wheel) == {"forge_core"}
    assert in_source(source) == {"forge_core"}
    heavy = {"torch", "transformers", "safetensors", "tensorboard", "pytest", "hypothesis"}
    assert not heavy & {each.name for each in requirements(wheel)}


@pytest.mark.parametrize("name", sorted(OURS.keys() - {"forge-rl-core"}))
def test_each_plugin_holds_its_package(name: str, tmp_path: Path) -> None:
    wheel, source = build(OURS[name], tmp_path)
    package = set() if name == STANDARD else {OURS[name].name}
    assert in_wheel(wheel) == package
    assert package <= in_source(source)
    assert Requirement(name).name not in {each.name for each in requirements(wheel)}


def imported(files: Iterable[Path]) -> set[str]:
    """Packages of ours that they import, inside functions and for type checking too."""
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found & {"forge_core", *(each.name for each in OURS.values())}


@pytest.mark.parametrize("name", sorted(OURS.keys() - {"forge-rl-core", STANDARD}))
def test_each_plugin_asks_for_what_it_imports(name: str) -> None:
    folder = OURS[name]
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    asked = {Requirement(line).name for line in sum(extras, project["dependencies"])}
    asked &= OURS.keys() - {"forge-rl-core"}
    packages = {OURS[each].name for each in asked}
    assert imported((folder / folder.name).rglob("*.py")) <= {folder.name, "forge_core", *packages}


def test_the_kernel_imports_no_package_beside_it() -> None:
    assert imported((ROOT / "forge_core").rglob("*.py")) == {"forge_core"}


def brought_by(name: str) -> set[str]:
    """The distribution and those of ours that it needs, directly or through others."""
    project = tomllib.loads((OURS[name] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {name}
    for line in project["dependencies"]:
        needed = Requirement(line).name
        if needed in OURS and needed not in found:
            found |= brought_by(needed)
    return found


def test_the_standard_set_runs_the_quickstart() -> None:
    config = Forge().resolve("quickstart")
    used = {config.runtime.plugin, *(each.plugin for each in config.trackers.values())}
    for stage in config.stages:
        parts = (stage.recipe, stage.generator, stage.trainer, stage.loss, stage.environment)
        used |= {part.plugin for part in (*parts, stage.dataset, stage.transport) if part}
        used |= {each.selection.plugin for each in stage.rewards.values()}
    assert used <= brought_by(STANDARD)


def test_the_workspace_has_the_standard_set() -> None:
    text = (ROOT / "requirements" / "workspace.txt").read_text(encoding="utf-8")
    folders = {(ROOT / path).resolve() for path in re.findall(r"^-e ([\w./]+)", text, re.MULTILINE)}
    assert {OURS[name] for name in brought_by(STANDARD)} <= folders
