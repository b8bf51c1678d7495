"""``scripts/live_view_picture.py``: the picture in the README."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from forge_run.settings import JsonlSettings
from forge_run.trackers.jsonl import JsonlTracker
from forge_testing.demo import replay

SCRIPT = Path(__file__).parents[3] / "scripts" / "live_view_picture.py"


def test_a_run_folder_becomes_a_picture(tmp_path: Path) -> None:
    replay([JsonlTracker(JsonlSettings(episodes=2))], tmp_path)
    picture = tmp_path / "images" / "view.svg"
    subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "--output", picture, "--step", "240"], check=True
    )
    ElementTree.parse(picture)
    text = picture.read_text().replace("&#160;", " ")
    assert "forge run demo" in text
    assert "step 120 of 180" in text
    assert "held-out score" in text
    assert "a sampled episode" in text
