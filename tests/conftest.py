"""The package of ``docs/writing-a-plugin.md``, written and installed once for all tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# By the clock, an example that waits for a busy machine would fail.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")

# Under nohup, programs that pytest starts would ignore SIGHUP. A signal that is handled here, not
# ignored, has its default effect in them.
signal.signal(signal.SIGHUP, lambda *_: None)

GUIDE = Path(__file__).parents[1] / "docs" / "writing-a-plugin.md"
FILE = re.compile(r"^```\w+ title=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def guide_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the files of the guide."""
    folder = tmp_path_factory.mktemp("acme-forge")
    for name, text in FILE.findall(GUIDE.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def installed_guide(guide_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that pip installed the package into."""
    target = tmp_path_factory.mktemp("site-packages")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, guide_package],
        check=True,
    )
    return target
