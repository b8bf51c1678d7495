"""Logs of child processes: bounded, whole at the end, and read from the end."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

from forge_local.processes.logs import RotatingLog, keep_bounded, older, pump, tail


def _append(path: Path, mark: str) -> None:
    log = RotatingLog(path, limit=10_000)
    for number in range(2_000):
        log.append(f"{mark} {number:04d}\n".encode())


def test_several_processes_share_a_bounded_log(tmp_path: Path) -> None:
    path = tmp_path / "rewards.log"
    writers = [
        multiprocessing.get_context("fork").Process(target=_append, args=(path, mark))
        for mark in "abcd"
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {file.name for file in tmp_path.iterdir()} == {"rewards.log", "rewards.log.1"}
    for part in (path, older(path)):
        assert part.stat().st_size < 11_000
        assert all(len(line) == 6 for line in part.read_text().splitlines())
    text = older(path).read_text() + path.read_text()
    assert any(f"{mark} 1999" in text for mark in "abcd")


def test_the_tail_of_a_huge_log_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: reading it whole would fail
        file.seek(0, os.SEEK_END)
        file.write(b"\n--- life 2\nfirst\nsecond\n")
    assert tail(path, 1) == ["second"]
    assert tail(path, after="--- ") == ["first", "second"]


def test_the_tail_goes_back_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    assert tail(path) == tail(None) == []
    older(path).write_text("--- life 1\nbefore\n")
    path.write_text("after\n")
    assert tail(path, after="--- ") == ["before", "after"]


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    source, sink = os.pipe()
    os.write(sink, b"printed")
    os.close(sink)
    pump(source, tmp_path / "no such folder" / "rewards.log")
    os.close(source)


def test_a_log_that_is_written_directly_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    with path.open("ab", buffering=0) as file:
        keep_bounded(path, limit=1_000, every=0.01)
        file.write(b"x" * 2_000)
        limit = time.monotonic() + 60
        while path.stat().st_size:
            assert time.monotonic() < limit
            time.sleep(0.01)
        file.write(b"and on\n")
    assert path.read_text() == "and on\n"
    assert older(path).stat().st_size == 2_000
