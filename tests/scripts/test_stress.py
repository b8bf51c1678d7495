"""``scripts/stress.py`` repeats tests and names a native crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "stress.py"
TEST = "import ctypes\n\ndef test_{name}():\n    {body}\n"
DOUBLE_FREE = (
    "c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; "
    "p = ctypes.c_void_p(c.malloc(64)); c.free(p); c.free(p)"
)


def stress(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--load", "0", *options, "-p", "no:cacheprovider", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_crash_is_named_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "test_crash.py"
    file.write_text(TEST.format(name="frees_twice", body=DOUBLE_FREE))
    result = stress(file, "-n", "1")
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.startswith("1: ")
    assert "free" in result.stdout.splitlines()[0]
    assert "in test_frees_twice" in result.stdout, "the Python stack is there"


def test_tests_that_pass_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "test_fine.py"
    file.write_text(TEST.format(name="fine", body="pass"))
    result = stress(file, "-n", "2", "--no-malloc-check")
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "2 x exit code 0")
