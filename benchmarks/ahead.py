"""Seconds of a GRPO step that samples while it trains, against one that does both in turn.

    python benchmarks/ahead.py [--steps N] [--repeats N] [--max-staleness K] [--json FILE]

The same run twice: with `recipe.max_staleness` 0 and with K. Generator and trainer have a process
of one thread each, so that two cores can work at once; the controller and the reward's process take
what they need beside them. A figure is the mean over a run's steps after the first few, the ratio
is that of the medians over the repeats, which alternate (above 1: sampling ahead is faster).

With nothing else to wait for, the ratio cannot be above (generate + train) / max(generate, train),
as the synchronous run measures them; both are printed.

Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from forge_core import Forge, RewardComponent, Settings, hookimpl

PARTS = ("generate", "reward", "wait", "train", "publish")
"""Of a step; sampling ahead has `wait` (for the step's groups) in place of the first two."""


class Sevens:
    """Contributes reward `sevens`: the share of sevens, which tells all episodes apart."""

    @hookimpl
    def forge_rewards(self) -> Any:
        yield RewardComponent(
            name="sevens",
            settings=Settings,
            build=lambda settings, context: sevens,
            summary="share of sevens",
        )


def sevens(sample: Any) -> float:
    return sample.completion.count("7") / max(1, len(sample.completion))


def main() -> None:
    arguments = parse()
    os.environ["OMP_NUM_THREADS"] = "1"
    sides = (0, arguments.max_staleness)
    runs: dict[int, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for side in sides:
                runs[side].append(measure(side, Path(folder), arguments))
    seconds = {side: median(run["step"] for run in runs[side]) for side in sides}
    for side in sides:
        parts = {part: median(run[part] for run in runs[side]) for part in PARTS}
        listed = ", ".join(f"{part} {value:.3f}" for part, value in parts.items() if value)
        print(f"max_staleness {side}: {seconds[side]:.3f} s/step ({listed})")
    ratio = seconds[0] / seconds[arguments.max_staleness]
    print(f"ratio {ratio:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ratio": ratio, "seconds": seconds, "runs": runs}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind")
    parser.add_argument("--max-staleness", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="episodes of a step")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a completion")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure(max_staleness: int, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Mean seconds of a step, and of its parts, in one run."""
    summary = Forge(plugins=[Sevens()]).run(config(max_staleness, folder, arguments))
    lines = (summary.folder / "metrics.jsonl").read_text().splitlines()
    timings = [json.loads(line)["timing"] for line in lines[arguments.warmup :]]
    return {
        part: fmean(timing.get(f"{part}_seconds", 0.0) for timing in timings)
        for part in ("step", *PARTS)
    }


def config(max_staleness: int, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    model = {
        "architecture": "qwen3",
        "characters": "0123456789+=",
        "config": {
            "hidden_size": arguments.hidden,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 3 * arguments.hidden,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
        },
    }
    return {
        "name": f"ahead-{max_staleness}",
        "model": {"init": model},
        "recipe": {"use": "grpo", "group_size": 8, "max_staleness": max_staleness},
        "dataset": {"use": "arithmetic", "low": 10, "high": 99},
        "rewards": {"sevens": {}},
        "sampling": {"max_tokens": arguments.max_tokens},
        "training": {
            "steps": arguments.warmup + arguments.steps,
            "batch_size": arguments.batch_size,
            "learning_rate": 1e-4,
        },
        "checkpointing": {"output_dir": str(folder)},
        "generator": {"isolate": True},
        "trainer": {"isolate": True},
    }


if __name__ == "__main__":
    main()
