"""``build`` of our own components is what its name says, and returns what its family asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forge_core import Forge
from forge_core.contracts.families import COMPONENT_TYPES
from forge_core.contracts.target import Target, taken
from forge_core.plugins.targets import build_problem

PROTOCOLS = {
    "recipe": "Recipe",
    "generator": "Generator",
    "trainer": "Trainer",
    "loss": "Loss",
    "optimizer": "OptimizerFactory",
    "schedule": "Schedule",
    "advantage": "AdvantageEstimator",
    "transport": "Transport",
    "runtime": "Runtime",
    "environment": "Environment",
    "reward": "AnyReward",
    "dataset": "Dataset",
    "tracker": "Tracker",
}

CATALOG = Forge().plugins.catalog
NAMED = [
    (family, name, CATALOG.get(family, name).build.reference)
    for family in COMPONENT_TYPES
    for name in CATALOG.names(family)
    if isinstance(CATALOG.get(family, name).build, Target)
]


def test_our_components_name_what_builds_them() -> None:
    unnamed = [
        f"{entry.provider.name}: {family} {entry.name}"
        for family in COMPONENT_TYPES
        for entry in CATALOG.entries(family)
        if not isinstance(entry.component.build, Target)
        and not entry.provider.name.startswith("acme_")  # examples of one module
    ]
    assert not unnamed
    assert len(NAMED) >= 20


@pytest.mark.parametrize(("family", "name", "reference"), NAMED, ids=lambda value: value)
def test_it_is_there_and_can_be_called(family: str, name: str, reference: str) -> None:
    assert build_problem(Target(reference)) == ""
    if family in ("runtime", "transport") or reference.startswith(("forge_titan", "forge_vllm")):
        return  # their engines are imported by their own tests
    pytest.importorskip("torch")
    assert taken(Target(reference).load()) in (0, 1, 2)


def test_types_of_what_is_built(tmp_path: Path) -> None:
    """The type checker sees through a name only where it is imported: so each is, here."""
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    lines = ["import forge_core"]
    for index, (family, _, reference) in enumerate(NAMED):
        module, _, attribute = reference.partition(":")
        lines += [
            f"from {module} import {attribute} as build_{index}",
            "from collections.abc import Callable",
            f"made_{index}: Callable[..., forge_core.{PROTOCOLS[family]}] = build_{index}",
        ]
    program = tmp_path / "types_of_builds.py"
    program.write_text("\n".join(lines))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)], capture_output=True, text=True, timeout=500
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
