"""The packages, the scripts and ``forge doctor`` agree on which Pythons are supported."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from forge_doctor.tested_versions import TESTED_PYTHONS

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def source(script: str, path: object = "$PATH", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run lines of bash that follow ``scripts/common.sh``, with this PATH."""
    return subprocess.run(
        ["/bin/bash", "-c", f'source {ROOT}/scripts/common.sh; PATH="{path}"; {script}'],
        env={"HOME": "/nowhere", "PATH": os.defpath, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def interpreter(path: Path, version: str) -> Path:
    """A stand-in that answers as that Python does when it is asked for its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\ncase "$* " in *" {version} "*) exit 0 ;; *) exit 1 ;; esac\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_package_declares_the_same_pythons(path: Path) -> None:
    project = tomllib.loads(path.read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    declared = [f"Programming Language :: Python :: {version}" for version in TESTED_PYTHONS]
    assert project["classifiers"] == declared


def test_the_scripts_know_them() -> None:
    assert source("echo $PYTHON_VERSIONS").stdout.split() == list(TESTED_PYTHONS)


@pytest.mark.parametrize(("name", "version"), [("python3.12", "3.12"), ("python3", "3.13")])
def test_an_interpreter_is_found_on_path(tmp_path: Path, name: str, version: str) -> None:
    interpreter(tmp_path / "python3.11", "3.10")  # a shim that leads elsewhere
    interpreter(tmp_path / name, version)
    assert source("find_python", tmp_path).stdout == name


def test_one_of_pyenv_is_found(tmp_path: Path) -> None:
    there = interpreter(tmp_path / "versions" / "3.13.5" / "bin" / "python", "3.13")
    assert source("python_of 3.13", tmp_path, PYENV_ROOT=str(tmp_path)).stdout == str(there)
    assert source("python_of 3.12", tmp_path, PYENV_ROOT=str(tmp_path)).returncode == 1


def test_another_python_is_refused_in_one_line(tmp_path: Path) -> None:
    old = str(interpreter(tmp_path / "python3", "3.10"))
    named = source("find_python", PYTHON=old)
    assert (named.returncode, named.stderr) == (
        1,
        f"error: PYTHON={old} is not Python 3.11, 3.12, 3.13\n",
    )
    found = source("find_python", tmp_path)
    assert found.returncode == 1
    assert found.stderr.startswith("error: Python 3.11, 3.12 or 3.13 is needed; ")


def test_what_is_tested_without_torch_is_there() -> None:
    script = (ROOT / "scripts" / "pythons.sh").read_text()
    listed = re.findall(r"\b(?:tests|plugins)/[\w/.]+", script)
    assert len(listed) > 10
    assert [path for path in listed if not (ROOT / path).exists()] == []
