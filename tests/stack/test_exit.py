"""The exit code is the command's, whatever engines do to the interpreter while it ends."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, os, sys, threading
from forge_core.cli import entry_point

class Engine:
    def __del__(self):
        os.abort()

engine = Engine()  # is only destroyed as the interpreter is taken down
atexit.register(print, "exit handler")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
sys.argv = ["forge", *sys.argv[1:]]
entry_point()
"""


def _forge(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=300
    )


def test_an_engine_that_aborts_at_the_end_does_not_change_the_code() -> None:
    done = _forge("presets")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["thread", "exit handler"]


def test_neither_does_it_hide_a_failure() -> None:
    assert _forge("run", "no-such-preset").returncode == 2
