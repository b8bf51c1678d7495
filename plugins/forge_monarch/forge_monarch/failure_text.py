"""Monarch's reports of a failure, in words."""

from __future__ import annotations

import re
import signal

# Two ways to say it each: of a process that ran, and of one that was still starting.
_KILLED = re.compile(r"Killed(?:\(sig=| { signal: )(\d+)")
_STOPPED = re.compile(r"(?:exited with non-zero code|Stopped { exit_code:) (-?\d+)")
_RANK = re.compile(r"\{([^{}]*\d+/\d+[^{}]*)\}")
_COORDINATE = re.compile(r"(\d+)/(\d+)")


def failed_rank(report: str) -> int | None:
    """Rank of the process that a report names by its coordinates, such as ``{'procs': 1/2}``."""
    point = _RANK.search(report)
    if point is None:
        return None
    rank = 0
    for coordinate, size in _COORDINATE.findall(point[1]):
        rank = rank * int(size) + int(coordinate)
    return rank


def describe(report: str) -> str:
    """How a process failed: it was killed, ended by itself, or hangs."""
    if killed := _KILLED.search(report):
        return f"was killed by {signal.Signals(int(killed[1])).name}"
    if stopped := _STOPPED.search(report):
        return f"ended with exit code {stopped[1]}"
    if "timeout waiting" in report or "no status received" in report:
        return "does not answer: it hangs, or its host is cut off"
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    return f"failed: {lines[-1]}" if lines else "failed without a report"
