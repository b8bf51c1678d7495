"""CI's share of the campaign: the same code as ``scripts/chaos.sh``, with few cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import AREAS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Area -> what was tried and what was wrong, of one campaign over all areas."""
    folder = tmp_path_factory.mktemp("campaign")
    file = folder / "report.json"
    command = [sys.executable, "-m", "tests.chaos", "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(result.stdout)
    assert file.exists(), result.stdout + result.stderr
    tallies: dict[str, Any] = json.loads(file.read_text())
    return tallies


@pytest.mark.parametrize("area", AREAS)
def test_nothing_is_wrong(report: dict[str, Any], area: str) -> None:
    tally = report[area]
    if tally["skipped"]:
        pytest.skip(tally["skipped"])
    assert tally["tried"] >= AREAS[area].ci
    assert not tally["wrong"]


def test_a_case_that_is_wrong_is_shown_with_the_command_that_repeats_it() -> None:
    """The campaign is told to expect other weights, so that every crash is wrong."""
    code = (
        "import sys, tests.chaos.subject as subject\n"
        "from tests.chaos import __main__ as campaign\n"
        "prepare = subject.prepare\n"
        "def prepared(scratch):\n"
        "    prepare(scratch)\n"
        "    subject.World.expected['weights'] = {'step_4': 'another'}\n"
        "subject.prepare = prepared\n"
        "sys.argv = ['chaos', '--area', 'signals', '--cases', '1', '--seed', '5']\n"
        "import os, tempfile\n"
        "os.environ['FORGE_CHAOS_SCRATCH'] = tempfile.mkdtemp()\n"
        "sys.exit(campaign.main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stderr
    assert "WRONG signals case 0" in result.stdout
    assert "scripts/chaos.sh --area signals --seed 5 --case 0 --keep" in result.stdout
    assert "signals    tried       1  wrong   1" in result.stdout
