"""The command where its standard streams are closed, full, gone or in ASCII, and at ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from forge_console.live import LiveView
from forge_core import Event, RunInfo, StageInfo
from forge_testing.command import process_environ
from forge_testing.runs import lines_of, small_config, write_config

STAGES = [StageInfo(name="grpo", recipe="grpo", steps=3)]
FORGE = f"{sys.executable} -m forge_core"


def shell(script: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=process_environ() | environ,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("redirected", "failure"),
    [
        ("| head -1", "BrokenPipeError: [Errno 32] Broken pipe"),
        ("> /dev/full 2>&- <&-", "OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_run_outlives_its_output(tmp_path: Path, redirected: str, failure: str) -> None:
    output = {"checkpointing": {"output_dir": str(tmp_path / "runs")}}
    trackers = {"console": {"interval": 0}, "jsonl": {}}
    write_config(small_config(trackers=trackers, **output), tmp_path / "small.yaml")
    done = shell(f"{FORGE} run small.yaml {redirected}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(lines_of(folder / "metrics.jsonl")) == 3
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["exit_code"]) == ("finished", 0)
    failed = [line for line in summary["warnings"] if "tracker" in line]
    assert len(failed) == 1
    assert failure in failed[0]
    if redirected.startswith("|"):
        assert done.stderr == (
            f"warning: standard output: Broken pipe; the run goes on in {folder}\n"
        )


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("presets >&- 2>&- <&-", 0, ""),
        ("run no-such >&- 2>&- <&-", 2, ""),
        ("presets > /dev/full", 1, "error: standard output: No space left on device\n"),
        ("run no-such 2> /dev/full", 2, ""),
        ("config show quickstart | true", 1, ""),
    ],
)
def test_exit_codes_without_streams(tmp_path: Path, command: str, code: int, error: str) -> None:
    done = shell(f"{FORGE} {command}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr) == (code, error)


def test_what_an_encoding_lacks_is_shown_in_ascii(tmp_path: Path) -> None:
    done = shell(
        f"{FORGE} run $(printf 'd\\xfe')ö→.yaml",
        tmp_path,
        PYTHONIOENCODING="ascii",
        LC_ALL="C.UTF-8",
    )
    assert done.stderr == "error: d\\udcfe\\xf6->.yaml: no such file\n"
    assert done.returncode == 2


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    done = shell(f"cd here; rmdir ../here; {FORGE} run quickstart --dry-run", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the working directory is gone (No such file")


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    write_config(small_config(), tmp_path / "small.yaml")
    script = f"mkdir -p $'n\\xff'; cd $'n\\xff'; {FORGE} run ../small.yaml --dry-run"
    done = shell(script, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: checkpointing.output_dir: ")
    assert "n\\udcff/runs: not UTF-8" in done.stderr
    elsewhere = shell(f"{script} checkpointing.output_dir={tmp_path}/runs", tmp_path)
    assert elsewhere.returncode == 0, elsewhere.stderr


PROGRAM = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *rest):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
import forge_core.cli
forge_core.cli.main = lambda main=forge_core.cli.main: main(sys.argv[2:])
forge_core.cli.entry_point()
"""


@pytest.mark.parametrize("module", ["click", "forge_core.streams", "pydantic", "forge_grpo.plugin"])
def test_ctrl_c_while_a_module_is_imported(module: str) -> None:
    arguments = [module, "run", "quickstart", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


def test_a_terminal_that_goes_away(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with contextlib.suppress(OSError), os.fdopen(slave, "w") as file:
        view = LiveView(Console(file=file, force_terminal=True, width=100, height=40))
        view.start(RunInfo(name="x", folder=tmp_path, stages=STAGES))
        os.close(master)
        time.sleep(0.6)  # drawn from a thread of its own, which must not end in a traceback
        with pytest.raises(OSError, match="Input/output error"):
            view.event(Event(time=0.0, kind="warning", message="x"))
