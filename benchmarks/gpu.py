"""Tests and benchmarks that need a CUDA device: ``bash scripts/gpu.sh``.

Each part runs in a process of its own with a time limit, and all of them within nine minutes; one
that fails or runs out of time is named, and the others go on. Writes ``gpu.json`` and prints a
table. Shares of peak are of what a large bfloat16 matrix product reaches on the same device. With
``--tiny`` everything is tried at small sizes on the CPU. Exits 1 if a part failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

BUDGET = 525.0
"""Seconds for everything, within nine minutes of the command."""

TESTS = "tests"

LIMITS: dict[str, float] = {
    "facts": 60,
    "models": 60,
    "logprobs": 45,
    "sft:1.7b:torch": 60,
    "sft:1.7b:hand": 60,
    TESTS: 180,
    "update:1.7b": 60,
    "decode:1.7b:64": 45,
    "mismatch:0.6b": 60,
    "grpo:1.7b:torch": 60,
    "sft:1.7b:titan": 60,
    "sft:0.6b:torch": 45,
    "sft:0.6b:hand": 45,
    "grpo:0.6b:torch": 45,
    "decode:0.6b:256": 45,
}
"""Part -> most seconds, in the order of what is worth most if time runs out."""

ENGINES = {"titan": "torchtitan"}
"""What a part's name may end with -> the package it needs."""


@dataclass
class Outcome:
    """How a part ended.

    Args:
        part: its name.
        ended: ``ok``, ``failed``, ``out of time`` or ``skipped``.
        seconds: that it took.
        rows: what it measured.
        reason: why it did not end well, in one line.
    """

    part: str
    ended: str
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog=f"parts: {' '.join(LIMITS)}"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all of them")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder for gpu.json and logs"
    )
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in LIMITS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are: {' '.join(LIMITS)}")
    device = "cpu" if arguments.tiny else "cuda"
    if device == "cuda" and not _sees_cuda():
        print("error: torch sees no CUDA device here; --tiny tries it on the CPU", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as models:
        given: dict[str, Any] = {"device": device, "models": models, "tiny": arguments.tiny}
        given["peak"] = None
        for part in _chosen(arguments.parts):
            left = BUDGET - (time.monotonic() - start)
            outcome = run(part, given, min(LIMITS[part], left), arguments.out)
            outcomes.append(outcome)
            found = [row["flops"] for row in outcome.rows if "flops" in row]
            given["peak"] = found[0] if found else given["peak"]
            print(f"{part:<18} {outcome.ended:<12} {outcome.seconds:6.1f} s  {outcome.reason}")
            _write(arguments.out / "gpu.json", outcomes, time.monotonic() - start)
    print("\n" + table(outcomes))
    return int(any(outcome.ended in {"failed", "out of time"} for outcome in outcomes))


def _chosen(parts: list[str]) -> list[str]:
    """In the order of ``LIMITS``; the models are made for those that need one."""
    if not parts:
        return list(LIMITS)
    needs_models = any(":" in part for part in parts)
    return [part for part in LIMITS if part in parts or (part == "models" and needs_models)]


def run(part: str, given: dict[str, Any], limit: float, out: Path) -> Outcome:
    """Run a part in a process of its own, and end what is left of it at its limit."""
    engine = ENGINES.get(part.rpartition(":")[2])
    if engine is not None and importlib.util.find_spec(engine) is None:
        return Outcome(part, "skipped", reason=f"{engine} is not installed")
    if limit <= 0:
        return Outcome(part, "skipped", reason=f"the {BUDGET:.0f} seconds are used up")
    if part == TESTS:
        command = [*(sys.executable, "-m", "pytest", "-q", "-m", "gpu"), *_test_folders()]
        command += [
            "--continue-on-collection-errors",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=--import-mode=importlib -ra",
        ]
    else:
        command = [sys.executable, str(ROOT / "benchmarks" / "gpu_parts.py"), part]
        command.append(json.dumps(given))
    log = out / f"{part.replace(':', '-')}.log"
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - start
    lines = log.read_text(errors="replace").splitlines()
    measured = [json.loads(line) for line in lines if line.startswith('{"')]
    if part == TESTS and code == 5:  # pytest: nothing was collected
        return Outcome(part, "failed", seconds, reason="no test is marked gpu")
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    if code is None:
        return Outcome(part, "out of time", seconds, measured, f"limit {limit:.0f} s; see {log}")
    if code:
        return Outcome(part, "failed", seconds, measured, f"{last.strip()[:150]}; see {log}")
    if part == TESTS:
        measured = [{"what": last.strip("= ")}]
    return Outcome(part, "ok", seconds, measured)


def table(outcomes: list[Outcome]) -> str:
    """Everything measured, a line each, in Markdown."""
    heads = {"what": "what", "tokens_per_s": "tokens/s", "share_of_peak": "share of peak"}
    heads["memory_gib"] = "GiB"
    lines = [f"| part | {' | '.join(heads.values())} | else |", "| --- " * 2 + "| ---: " * 4 + "|"]
    for outcome in outcomes:
        for row in outcome.rows:
            cells = " | ".join(_short(row.get(key, "")) for key in heads)
            more = ", ".join(f"{key} {_short(row[key])}" for key in row if key not in heads)
            lines.append(f"| {outcome.part} | {cells} | {more} |")
        if outcome.ended != "ok":
            lines.append(f"| {outcome.part} | {outcome.ended} | | | | {outcome.reason} |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return " ".join(value) if isinstance(value, list) else str(value)


def _write(file: Path, outcomes: list[Outcome], seconds: float) -> None:
    whole = {"seconds": round(seconds, 1), "parts": [vars(outcome) for outcome in outcomes]}
    file.write_text(json.dumps(whole, indent=1) + "\n")


def _test_folders() -> list[str]:
    """Of the kernel and of the plugins that are here: others' tests cannot be imported."""
    there = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    plugins = [Path(path) for path in there if Path(path).parent == ROOT / "plugins"]
    return ["tests", *(str(path / "tests") for path in plugins if (path / "tests").is_dir())]


def _sees_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and what it started: they share a session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
