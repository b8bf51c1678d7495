"""One process writes a run folder: the lock, what frees it, and what a late writer is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_core import UsageError, WriterLost
from forge_run.writer import WRITER, Writer, check_free, holder_of
from forge_testing.command import process_environ
from forge_testing.runs import Run, lines_of, small_config, until

LONG = small_config(
    training={"steps": 2000, "batch_size": 32, "learning_rate": 0.001},
    checkpointing={"save_interval": 2},
)
HOLD = """
import os, sys, time
from pathlib import Path
from forge_run.writer import Writer
writer = Writer(Path(sys.argv[1]))
child = sys.argv[2:] and os.fork()
if child == 0:
    time.sleep(600)
print("held", child or "", flush=True)
time.sleep(600)
"""


def holding(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A process that holds the lock, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=process_environ(),
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def content(folder: Path) -> dict[Path, bytes]:
    """Every file but those of a checkpoint that is being written."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".draft" not in str(path)]
    return {path: path.read_bytes() for path in files}


def test_the_second_one_is_refused_by_name_of_the_first(tmp_path: Path) -> None:
    process, _ = holding(tmp_path)
    try:
        with pytest.raises(UsageError, match=rf"written by pid {process.pid} on {os.uname()[1]} "):
            Writer(tmp_path)
        with pytest.raises(UsageError, match="wait for its end"):
            check_free(tmp_path)
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: (holder := holder_of(tmp_path)) and holder.state == "T", 10)
        with pytest.raises(UsageError, match=f"stopped: kill -CONT {process.pid} lets it"):
            check_free(tmp_path)
    finally:
        process.kill()
        process.wait()


def test_two_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    with Writer(tmp_path), pytest.raises(UsageError, match=f"pid {os.getpid()} "):
        Writer(tmp_path)
    with Writer(tmp_path) as writer:
        writer.check()
    assert list(tmp_path.iterdir()) == []


def test_a_crash_frees_it_even_where_a_forked_child_lives_on(tmp_path: Path) -> None:
    process, printed = holding(tmp_path, "fork")
    process.kill()
    process.wait()
    child = int(printed.split()[1])
    try:
        assert holder_of(tmp_path) is None
        with Writer(tmp_path) as writer:
            writer.check()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_late_writer_is_refused(tmp_path: Path) -> None:
    late = Writer(tmp_path)
    (tmp_path / WRITER).unlink()
    with pytest.raises(WriterLost, match="was deleted"):
        late.check()
    with Writer(tmp_path) as now:
        with pytest.raises(WriterLost, match=f"pid {os.getpid()} on .* has taken over"):
            late.check()
        late.release()
        now.check()


def test_looking_does_not_take_it(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with Writer(tmp_path) as writer:
        for _ in range(3):
            assert holder_of(tmp_path) == writer.holder
    assert holder_of(tmp_path) is None


def test_two_that_resume_at_once(runs: Callable[..., Run]) -> None:
    run = runs(LONG)
    run.until_step(3)
    run.process.kill()
    run.process.wait()
    folder = run.folder
    run.resume()
    first = run.process
    until(lambda: holder_of(folder) is not None or first.poll() is not None)
    command = [sys.executable, "-m", "forge_core", "run", "--resume", str(folder)]
    second = subprocess.run(command, capture_output=True, text=True, env=process_environ())
    assert second.returncode == 2, second.stderr
    (line,) = second.stderr.splitlines()
    assert re.fullmatch(rf"error: {folder} is being written by pid {first.pid} on \S+ .*", line)
    first.send_signal(signal.SIGINT)
    assert run.end() == 130, run.printed
    steps = [row["step"] for row in run.lines("metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    assert not (folder / WRITER).exists()


def test_a_process_that_was_stopped_while_another_took_over_writes_nothing_more(
    runs: Callable[..., Run],
) -> None:
    run = runs(LONG)
    run.until_step(3)
    old = run.process
    old.send_signal(signal.SIGSTOP)
    folder = run.folder
    run.resume()
    assert run.end() == 2
    assert f"pid {old.pid} on" in run.printed.splitlines()[-1]
    assert f"stopped: kill -CONT {old.pid}" in run.printed.splitlines()[-1]
    # Somebody breaks the lock all the same.
    (folder / WRITER).unlink()
    run.resume("training.steps=10")
    assert run.end() == 0, run.printed
    after = content(folder)
    old.send_signal(signal.SIGCONT)
    assert old.wait(60) == 1
    (line,) = [line for line in run.printed.splitlines() if line.startswith("error:")][1:]
    assert f"from pid {old.pid}" in line or f"of this process (pid {old.pid})" in line
    assert content(folder) == after
    assert [row["step"] for row in lines_of(folder / "metrics.jsonl")] == list(range(1, 11))
