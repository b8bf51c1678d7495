"""``scripts/gpu.sh`` on the CPU, and what it does when parts fail or packages are missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load(path: str) -> ModuleType:
    name = Path(path).stem + "_under_test"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return load("scripts/gpu_site.py")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load("benchmarks/gpu.py")


def gpu(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu.sh"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": "", **environ},
    )


def test_parts_are_measured_and_written_down(tmp_path: Path) -> None:
    result = gpu("--tiny", "--out", str(tmp_path / "out"), "facts", "sft:0.6b:torch")
    assert result.returncode == 0, result.stdout + result.stderr
    written = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert [(part["part"], part["ended"]) for part in written["parts"]] == [
        ("facts", "ok"),
        ("models", "ok"),
        ("sft:0.6b:torch", "ok"),
    ]
    (row,) = written["parts"][-1]["rows"]
    assert row["tokens_per_s"] > 0
    assert row["share_of_peak"] > 0  # of a peak measured on a few numbers: not below 1 everywhere
    assert "| sft:0.6b:torch | sft, torch, tiny |" in result.stdout


def test_a_part_that_does_not_exist() -> None:
    result = gpu("--tiny", "sft:7b")
    assert result.returncode == 2
    assert "no part sft:7b; there are: facts" in result.stderr


def test_an_interpreter_without_the_large_packages(site: ModuleType, monkeypatch: Any) -> None:
    monkeypatch.setattr(site, "FLOORS", {"torch": (99, 0)})
    monkeypatch.setattr(sys, "argv", ["gpu_site.py", "--target", "unused"])
    assert site.main() == 2


def test_missing_packages_come_from_wheels(
    site: ModuleType, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert site.missing("# a comment\nclick>=8.1\nclick>=99.0\nno-such-package>=1\n") == [
        "click>=99.0",
        "no-such-package>=1",
    ]
    monkeypatch.setattr(site, "missing", lambda text: ["no-such-package>=1"])
    wheels = tmp_path / "wheels"
    target = ["gpu_site.py", "--target", str(tmp_path / "site"), "--wheels", str(wheels)]
    monkeypatch.setattr(sys, "argv", target)
    assert site.main() == 2
    assert "scripts/gpu-wheels.sh" in capsys.readouterr().err
    wheels.mkdir()
    assert site.main() == 2
    assert "no-such-package" in capsys.readouterr().err


def test_our_packages_are_found_without_an_installation(site: ModuleType, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "plugins/forge_torch/pyproject.toml").read_text())["project"]
    site.write_metadata(project, tmp_path)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    assert (found.name, found.version) == (project["name"], project["version"])
    assert [(entry.group, entry.value) for entry in found.entry_points] == [
        ("forge", "forge_torch.plugin")
    ]


def test_plugins_without_their_engine_are_left_out(site: ModuleType, monkeypatch: Any) -> None:
    here = site.version_of
    monkeypatch.setattr(site, "version_of", lambda name: None if "vllm" in name else here(name))
    used, left_out = site.projects()
    assert left_out["forge_vllm"] == "vllm is not installed"
    assert ROOT / "plugins" / "forge_torch" in used


def test_all_that_is_required_is_listed() -> None:
    """A package that the kernel or the default plugins start to need must be brought too."""
    brought = {
        line.partition(">=")[0].lower()
        for line in (ROOT / "requirements" / "gpu.txt").read_text().splitlines()
    }
    for folder in (ROOT, *(ROOT / "plugins" / name for name in ("forge_torch", "forge_grpo"))):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for line in project["dependencies"]:
            name = line.partition(">=")[0].partition("[")[0].lower()
            # transformers requires numpy.
            ours = name.startswith("forge-rl-")
            assert ours or name in {*brought, "numpy"}, f"requirements/gpu.txt: {name}"


def test_a_part_that_ends_badly_is_named(bench: ModuleType, tmp_path: Path) -> None:
    given = {"device": "cpu", "models": str(tmp_path / "none"), "tiny": True, "peak": None}
    late = bench.run("facts", given, 0.3, tmp_path)
    assert (late.ended, late.rows) == ("out of time", [])
    failed = bench.run("sft:0.6b:torch", given, 300, tmp_path)
    assert failed.ended == "failed"
    assert failed.reason.startswith("FileNotFoundError: ")  # the end of a long line is cut off
    assert bench.run("facts", given, -1.0, tmp_path).ended == "skipped"
    text = bench.table([late, failed])
    assert "| facts | out of time |" in text
    assert "| sft:0.6b:torch | failed |" in text


def test_an_engine_that_is_not_there_is_named(
    bench: ModuleType, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(bench.ENGINES, "titan", "no_such_engine")
    outcome = bench.run("sft:1.7b:titan", {}, 60, tmp_path)
    assert (outcome.ended, outcome.reason) == ("skipped", "no_such_engine is not installed")


def test_the_limits_leave_room_for_what_is_worth_most(bench: ModuleType) -> None:
    """However long each part takes, the first half of them is run."""
    limits = list(bench.LIMITS.values())
    assert sum(limits[: len(limits) // 2]) <= bench.BUDGET < 540
