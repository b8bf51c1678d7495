"""Monarch's reports of a failure, in words."""

from __future__ import annotations

import re
import signal

_KILLED = re.compile(r"Killed\(sig=(\d+)")
_STOPPED = re.compile(r"Stopped\((?:exit_?code=)?(-?\d+)")
_RANK = re.compile(r"\{[^{}]*?'procs': (\d+)/(\d+)")


def describe(report: str) -> str:
    """Why a replica failed: it was killed, ended by itself, or hangs."""
    where = ""
    if (rank := _RANK.search(report)) and rank[2] != "1":
        where = f"rank {rank[1]}: "
    if killed := _KILLED.search(report):
        return f"{where}the process was killed by {signal.Signals(int(killed[1])).name}"
    if stopped := _STOPPED.search(report):
        return f"{where}the process ended with exit code {stopped[1]}"
    if "timeout waiting" in report:
        return f"{where}the process does not answer: it hangs, or its host is cut off"
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    return where + (lines[-1] if lines else "it failed without a report")
