"""Compare the speed of Forge, TRL and a hand-written torch loop on the same model and work.

    python benchmarks/compare_trl.py [--peers forge,trl,hand] [--json FILE]

Makes TRL's environment if it is missing (trl_env.sh), builds the model folder in a temporary
directory, and runs every peer in a process of its own, the peers in alternation, `--repeats`
times, with each thread count. For a peer and workload the figure is the median over the repeats
of the run's median step, for the better thread count: seconds per step for GRPO, real (not
padding) tokens per second for SFT. Ratios above 1 mean that Forge is faster. GRPO lines also
show the completion lengths, so that both sides can be seen to do the same work.

Needs only the standard library. Run it on an idle machine: two threads on a busy one wait for
each other, which is why single-threaded runs are always measured too.
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

from workloads import WORKLOADS

HERE = Path(__file__).resolve().parent
SCRIPTS = {"forge": "forge_peer.py", "trl": "trl_peer.py", "hand": "hand_loop.py"}
Result = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    def names(known: list[str]) -> Any:
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            if unknown := set(chosen) - set(known):
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
            return chosen

        return parse

    peers, workloads = list(SCRIPTS), list(WORKLOADS)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", "--peer", type=names(peers), default=peers, metavar="A,B")
    parser.add_argument("--workloads", type=names(workloads), default=workloads, metavar="A,B")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each peer")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=3, help="untimed steps of a run")
    parser.add_argument("--threads", default="1,2", help="thread counts; a peer's better counts")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a run may take")
    parser.add_argument("--trl-env", type=Path, default=HERE / ".venv-trl")
    parser.add_argument("--forge-python", default=sys.executable, help="python that has Forge")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    return parser.parse_args()


def run_peer(
    peer: str, workload: str, threads: int, model: Path, arguments: argparse.Namespace
) -> Result:
    """Run one peer once; its result line, or `{"error": ...}` with its last message."""
    python = arguments.forge_python if peer == "forge" else arguments.trl_env / "bin" / "python"
    command = [str(python), str(HERE / SCRIPTS[peer]), "--workload", workload]
    command += ["--model", str(model), "--threads", str(threads)]
    command += ["--steps", str(arguments.steps), "--warmup", str(arguments.warmup)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=arguments.timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"ran past {arguments.timeout:g} s"}
    if done.returncode:
        message = done.stderr.strip().splitlines() or ["no message"]
        return {"error": f"{message[-1]} (status {done.returncode})"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def metric(workload: str) -> str:
    return "tokens_per_second" if workload.startswith("sft") else "step_seconds_median"


def summarize(workload: str, runs: list[Result]) -> Result | None:
    """The median figure of the better thread count, or None if no run succeeded."""
    key = metric(workload)
    by_threads: dict[int, list[Result]] = {}
    for run in runs:
        if "error" not in run:
            by_threads.setdefault(run["threads"], []).append(run)
    if not by_threads:
        return None
    figures = {n: median(run[key] for run in same) for n, same in by_threads.items()}
    better = max if key == "tokens_per_second" else min
    threads = better(figures, key=lambda n: figures[n])
    same = by_threads[threads]
    out: Result = {"figure": figures[threads], "unit": key, "threads": threads}
    out["figures_by_threads"] = figures
    out["settings"] = sorted({run["setting"] for run in same})
    for name in ("completion_tokens_mean", "completion_tokens_max_mean"):
        if name in same[0]:
            out[name] = median(run[name] for run in same)
    return out


def ratio(summaries: dict[str, Result | None], workload: str, other: str) -> float | None:
    """How many times faster Forge is than the other peer."""
    forge, peer = summaries.get("forge"), summaries.get(other)
    if not forge or not peer:
        return None
    a, b = forge["figure"], peer["figure"]
    return a / b if metric(workload) == "tokens_per_second" else b / a


def table(summaries: dict[str, dict[str, Result | None]]) -> str:
    head = f"{'workload':<12} {'peer':<6} {'speed':>15}  {'threads':>7} {'Forge is':>9}  notes"
    lines = [head, "-" * len(head)]
    for workload, peers in summaries.items():
        for peer, found in peers.items():
            if found is None:
                lines.append(f"{workload:<12} {peer:<6} {'failed':>15}")
                continue
            is_rate = found["unit"] == "tokens_per_second"
            speed = f"{found['figure']:,.0f} tok/s" if is_rate else f"{found['figure']:.3f} s/step"
            faster = ratio(peers, workload, peer) if peer != "forge" else None
            times = f"{faster:.2f}x" if faster else ""
            notes = ", ".join(found["settings"])
            if "completion_tokens_mean" in found:
                mean, longest = (
                    found[f"completion_tokens_{name}"] for name in ("mean", "max_mean")
                )
                notes += f"; completions mean {mean:.1f}, longest of a batch {longest:.0f} tokens"
            lines.append(
                f"{workload:<12} {peer:<6} {speed:>15}  {found['threads']:>7} {times:>9}  {notes}"
            )
    return "\n".join(lines)


def main() -> int:
    arguments = parse_arguments()
    threads = [int(count) for count in arguments.threads.split(",")]
    subprocess.run([str(HERE / "trl_env.sh"), str(arguments.trl_env)], check=True)
    runs: dict[str, dict[str, list[Result]]] = {
        workload: {peer: [] for peer in arguments.peers} for workload in arguments.workloads
    }
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        build = [str(arguments.trl_env / "bin" / "python"), str(HERE / "tiny_model.py"), str(model)]
        subprocess.run(build, check=True, capture_output=True)
        for repeat in range(arguments.repeats):
            for workload in arguments.workloads:
                for count in threads:
                    for peer in arguments.peers:
                        result = run_peer(peer, workload, count, model, arguments)
                        runs[workload][peer].append(result)
                        shown = result.get("error") or f"{result[metric(workload)]:.4g}"
                        label = f"{workload} {peer} threads={count}"
                        print(f"[{repeat + 1}/{arguments.repeats}] {label}: {shown}", flush=True)

    summaries = {
        workload: {peer: summarize(workload, found) for peer, found in peers.items()}
        for workload, peers in runs.items()
    }
    print("\n" + table(summaries))
    if arguments.json:
        ratios = {
            workload: {f"forge/{other}": ratio(peers, workload, other) for other in ("trl", "hand")}
            for workload, peers in summaries.items()
        }
        document = {"summaries": summaries, "ratios": ratios, "runs": runs}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    failed = any(found is None for peers in summaries.values() for found in peers.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
