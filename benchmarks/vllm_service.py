"""Compare generator `vllm` behind a Forge service with the bare vLLM engine.

    python benchmarks/vllm_service.py [--places in-process,process] [--json FILE]

Builds the model folder in a temporary directory, starts both peers (vllm_peer.py), each in a
process of its own, and gives them the same work one after the other, `--repeats` times: tokens per
second at 64 and at 256 requests in flight, and weight updates. In place `process` the engine is a
process beside the caller's on both sides (the bare peer is vLLM's AsyncLLM), in place `in-process`
it is inside the caller's (vLLM's LLMEngine). Figures are medians over the repeats, and so is the
ratio of the two in each: they are neighbours in time, whatever the machine does meanwhile. A speed
ratio above 1 means that Forge is faster, an update ratio above 1 that Forge takes longer.

Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = ("bare", "forge")
PLACES = ("in-process", "process")


class Worker:
    """A peer's process: one line of JSON in, one out."""

    def __init__(self, peer: str, place: str, model: Path, threads: int) -> None:
        command = [sys.executable, str(HERE / "vllm_peer.py"), "--peer", peer]
        command += ["--place", place, "--model", str(model)]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            # The engine's processes import the bare peer's extension.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH", "")])),
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, order: dict[str, int] | None = None) -> dict[str, Any]:
        """The answer to an order; to none: that the engine is up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if order is not None:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"a peer ended:\n{self._log.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._log.close()


def measure(
    workers: dict[str, Worker], arguments: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Workload -> peer -> a figure for each repeat: tokens per second, or seconds of an update."""
    figures: dict[str, dict[str, list[float]]] = {}

    def add(workload: str, peer: str, figure: float) -> None:
        figures.setdefault(workload, {}).setdefault(peer, []).append(figure)

    for worker in workers.values():
        worker.ask()
    workloads: dict[str, dict[str, int]] = {
        f"{concurrency} requests": {"concurrency": concurrency, "tokens": arguments.tokens}
        for concurrency in arguments.concurrency
    }
    workloads["weight update"] = {"updates": arguments.updates}
    for repeat in range(arguments.repeats + 1):
        # The first to run meets another machine than the second.
        order = list(workers.items()) if repeat % 2 else list(reversed(workers.items()))
        for workload, task in workloads.items():
            for peer, worker in order:
                found = worker.ask(task)
                if repeat > 0:  # the first round warms up
                    add(workload, peer, _figure(found))
    return figures


def _figure(found: dict[str, Any]) -> float:
    """Tokens per second, or the median seconds of an update."""
    if "tokens" in found:
        return float(found["tokens"] / found["seconds"])
    return float(median(found["seconds"]))


def summarize(figures: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Workload -> the peers' medians, and the median ratio of Forge to bare in the same repeat."""
    out = {}
    for workload, peers in figures.items():
        medians = {peer: median(values) for peer, values in peers.items()}
        pairs = zip(peers["forge"], peers["bare"], strict=True)
        out[workload] = {**medians, "forge/bare": median(forge / bare for forge, bare in pairs)}
    return out


def table(summaries: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [f"{'place':<11} {'workload':<14} {'bare':>14} {'Forge':>14} {'Forge / bare':>13}"]
    lines.append("-" * len(lines[0]))
    for place, workloads in summaries.items():
        for workload, found in workloads.items():
            if workload == "weight update":
                bare, forge = (f"{found[peer] * 1000:,.1f} ms" for peer in PEERS)
            else:
                bare, forge = (f"{found[peer]:,.0f} tok/s" for peer in PEERS)
            ratio = found["forge/bare"]
            lines.append(f"{place:<11} {workload:<14} {bare:>14} {forge:>14} {ratio:>13.2f}")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    def places(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(PLACES):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return chosen

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--places", type=places, default=list(PLACES), metavar="A,B")
    parser.add_argument("--concurrency", type=numbers, default=[64, 256], metavar="N,M")
    parser.add_argument("--tokens", type=int, default=128, help="of each completion")
    parser.add_argument("--updates", type=int, default=5, help="weight updates of a repeat")
    parser.add_argument("--repeats", type=int, default=9, help="after one that warms up")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        build = [sys.executable, str(HERE / "tiny_model.py"), str(model)]
        subprocess.run(build, check=True, capture_output=True)
        for place in arguments.places:
            workers = {peer: Worker(peer, place, model, arguments.threads) for peer in PEERS}
            try:
                figures[place] = measure(workers, arguments)
            finally:
                for worker in workers.values():
                    worker.close()
    summaries = {place: summarize(found) for place, found in figures.items()}
    print(table(summaries))
    if arguments.json:
        document = {"summaries": summaries, "figures": figures}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
