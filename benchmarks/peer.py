"""The command line and the result line that all peers share (standard library only).

A peer is a script which measures one workload in its own process and prints one JSON line as
the last line of its standard output:

    python PEER.py --workload NAME --model FOLDER --threads N --steps N [--warmup N]

A step is everything from the end of one optimizer step to the end of the next: data loading,
generation and reward (GRPO), forward, backward, clipping and the update.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

from workloads import WORKLOADS


@dataclass
class Timing:
    """Timed steps of one setting; `tokens` are real tokens (SFT), `lengths` completions' (GRPO)."""

    seconds: list[float]
    tokens: list[int] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "step_seconds_median": median(self.seconds),
            "step_seconds_mean": mean(self.seconds),
            "step_seconds": [round(s, 5) for s in self.seconds],
        }
        if self.tokens:
            rates = [n / s for n, s in zip(self.tokens, self.seconds, strict=True)]
            out["tokens_per_second"] = median(rates)
            out["tokens_per_second_mean"] = sum(self.tokens) / sum(self.seconds)
            out["tokens_per_step_mean"] = mean(self.tokens)
        if self.lengths:
            out["completion_tokens_mean"] = mean(n for step in self.lengths for n in step)
            out["completion_tokens_max_mean"] = mean(max(step) for step in self.lengths)
            out["completion_tokens_max"] = max(max(step) for step in self.lengths)
        return out


@dataclass(frozen=True)
class Arguments:
    workload: str
    model: str
    threads: int
    steps: int
    warmup: int


def parse_arguments(description: str | None, argv: list[str] | None = None) -> Arguments:
    """Read a peer's command line, and set the thread count before torch is imported."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--workload", required=True, choices=sorted(WORKLOADS))
    parser.add_argument("--model", required=True, help="folder made by tiny_model.py")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="untimed steps before them")
    arguments = Arguments(**vars(parser.parse_args(argv)))
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    return arguments


def print_result(
    peer: str, arguments: Arguments, timings: dict[str, Timing], eligible: list[str] | None = None
) -> None:
    """Print the fastest of the eligible settings, with every setting under `settings`.

    GRPO settings are ranked by seconds per step, SFT settings by real tokens per second.
    """
    settings = {name: timing.summary() for name, timing in timings.items()}

    def speed(name: str) -> float:
        found = settings[name]
        return found.get("tokens_per_second", 1 / found["step_seconds_median"])

    best = max(eligible or list(settings), key=speed)
    result = {"peer": peer, **asdict(arguments), "setting": best, **settings[best]}
    if len(settings) > 1:
        result["settings"] = settings
    del result["model"]
    print(json.dumps(result), flush=True)
