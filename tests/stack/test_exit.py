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


def test_a_thread_that_does_not_end_is_not_waited_for() -> None:
    program = PROGRAM.replace("threading.main_thread().join()", "threading.Event().wait()")
    program = program.replace("entry_point()\n", "forge_core.cli.LAST_WAIT = 0.5\nentry_point()\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import forge_core.cli\n{program}", "presets"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "threads that have not ended within 0.5 s are abandoned" in done.stderr
    assert done.stdout.splitlines()[-1] == "exit handler"
