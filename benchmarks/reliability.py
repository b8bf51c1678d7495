"""What the lock, the checks and the syncs of a run folder take of a step of the quickstart.

    python benchmarks/reliability.py [--steps N] [--save-interval N] [--json FILE]

The quickstart with fewer steps, in this process. Every function that takes or checks the lock, that
syncs a file or a folder, that looks for weights that are not finite, or that computes a checksum of
a checkpoint is timed, each moment once.
The figure is their time over the time of all steps; under 1 % is what is asked for. What a disk
takes for a sync decides it, so it is printed too. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_core import Forge

GUARDS = (
    "os:fsync",
    "forge_run.durable:write_text",
    "forge_run.durable:move",
    "forge_run.durable:sync",
    "forge_run.writer:Writer.__init__",
    "forge_run.writer:Writer.check",
    "forge_run.writer:Writer.release",
    "forge_tensors.finite:first_not_finite",
    "forge_core.manifest:seal",
    "forge_core.manifest:verify",
    "forge_run.checkpoint:CheckpointStore.verify",
)


class Clock:
    """Seconds and calls of the functions it wraps; of one called by another, only the outer's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: dict[str, int] = {}
        self.seconds_of: dict[str, float] = {}
        self._inside = False

    def wrap(self, name: str) -> None:
        """Replace a function of a module or class by one that is timed, wherever it is imported."""
        module, _, path = name.partition(":")
        holder: Any = importlib.import_module(module)
        *parents, last = path.split(".")
        for parent in parents:
            holder = getattr(holder, parent)
        original = getattr(holder, last)
        timed = self._timed(name, original)
        setattr(holder, last, timed)
        for loaded in list(sys.modules.values()):
            if getattr(loaded, "__name__", "").startswith("forge_"):
                for key, value in list(vars(loaded).items()):
                    if value is original:
                        setattr(loaded, key, timed)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                passed = time.perf_counter() - begin
                self.seconds += passed
                self.seconds_of[name] = self.seconds_of.get(name, 0.0) + passed
                self._inside = False

        return call


def sync_seconds(folder: Path, count: int = 50) -> float:
    """What a small file's sync takes here, on average."""
    begin = time.perf_counter()
    for _ in range(count):
        with (folder / "probe").open("w") as file:
            file.write("x")
            file.flush()
            os.fsync(file.fileno())
    return (time.perf_counter() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150, help="of each stage")
    parser.add_argument(
        "--save-interval",
        type=int,
        help="steps between checkpoints; default: the quickstart's, one at the end of each stage",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        probe = sync_seconds(Path(name))
        clock = Clock()
        for guard in GUARDS:
            clock.wrap(guard)
        summary = Forge().run(
            "quickstart",
            {
                "stages.sft.training.steps": options.steps,
                "stages.grpo.training.steps": options.steps,
                "checkpointing.output_dir": name,
                "checkpointing.save_interval": options.save_interval,
                "trackers": {"jsonl": {}},
            },
        )
        lines = (summary.folder / "metrics.jsonl").read_text().splitlines()
    steps = sum(json.loads(line)["timing"]["step_seconds"] for line in lines)
    result = {
        "steps": len(lines),
        "step_seconds": steps / len(lines),
        "guard_seconds": clock.seconds / len(lines),
        "share": clock.seconds / steps,
        "sync_seconds": probe,
        "calls": clock.calls,
        "seconds_of": clock.seconds_of,
    }
    print(f"a sync of a small file here: {probe * 1000:.2f} ms")
    print(
        f"{len(lines)} steps of {1000 * steps / len(lines):.0f} ms; lock, checks and syncs: "
        f"{1000 * clock.seconds / len(lines):.2f} ms a step, {100 * clock.seconds / steps:.2f} %"
    )
    for name, seconds in sorted(clock.seconds_of.items(), key=lambda item: -item[1]):
        print(f"  {1000 * seconds:8.1f} ms in {clock.calls[name]:4} calls  {name}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
