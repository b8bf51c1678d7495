"""The ``forge`` command as a test calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.cli import main

if TYPE_CHECKING:
    from forge_core import Forge


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command left behind."""

    exit_code: int
    stdout: str
    stderr: str


def run_in_process(*arguments: str, app: Forge | None = None) -> CommandResult:
    """Call the command in this process: quick, and a debugger steps through it.

    Args:
        arguments: such as ``"run", "quickstart", "training.steps=2"``.
        app: the app to use; default: a fresh one that discovers installed plugins.
    """
    stdout, stderr = StringIO(), StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        exit_code = main(arguments, app=app)
    return CommandResult(exit_code, stdout.getvalue(), stderr.getvalue())


def run_as_process(
    *arguments: str,
    cwd: Path,
    python_path: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> CommandResult:
    """Call the command as a process of its own, undisturbed by the caller's ``FORGE_*`` variables.

    Args:
        arguments: as for ``run_in_process``.
        cwd: working directory.
        python_path: folders to import from, before all others.
        environ: variables on top of this process's.
        timeout: seconds until the process is killed.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    folders = [*map(str, python_path), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-m", "forge_core", *arguments],
        cwd=cwd,
        env=process_environ()
        | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        | dict(environ or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return CommandResult(result.returncode, result.stdout, result.stderr)


def process_environ() -> dict[str, str]:
    """The environment of a command as a process: this one, without its ``FORGE_*`` variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    return inherited | {"OMP_NUM_THREADS": "1"}
