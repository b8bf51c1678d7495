"""Repeat tests under load, with a checking allocator, until a native crash shows where it happens.

    python scripts/stress.py -n 50 plugins/forge_titan/tests/test_distributed.py -k context

Processes that only compute compete with the tests for the cores. glibc's ``libc_malloc_debug``
checks the heap at each call and overwrites freed memory, so a stray write is found near where it
happened; a crash prints the Python stack. Prints one line per repetition, and the whole output of
those that failed. Exit code 1 if one did. Other options go to pytest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

MALLOC_DEBUG = "libc_malloc_debug.so.0"
CRASH = re.compile(
    r"killed by (SIG\w+)|Fatal Python error: (.+)|^(malloc|free|corrupted|double).*", re.M
)


def spin() -> None:
    while True:
        sum(range(100_000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=50, help="repetitions (50)")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="competing processes")
    parser.add_argument("--no-malloc-check", action="store_true", help="the usual allocator")
    options, tests = parser.parse_known_args()
    environ = os.environ | {"PYTHONFAULTHANDLER": "1"}
    if not options.no_malloc_check:
        environ |= {"LD_PRELOAD": MALLOC_DEBUG, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    load = [multiprocessing.Process(target=spin, daemon=True) for _ in range(options.load)]
    for process in load:
        process.start()
    ends: Counter[str] = Counter()
    for repetition in range(1, options.n + 1):
        started = time.monotonic()
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "no:xdist", *tests],
            cwd=Path(__file__).parents[1],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        crash = CRASH.search(result.stdout)
        end = crash[0] if crash else f"exit code {result.returncode}"
        ends[end] += 1
        print(f"{repetition}: {end} in {time.monotonic() - started:.0f} s", flush=True)
        if result.returncode:
            print(result.stdout, flush=True)
        if result.returncode in (4, 5):  # usage, or no test
            return result.returncode
    print(", ".join(f"{count} x {end}" for end, count in ends.most_common()))
    return int(set(ends) != {"exit code 0"})


if __name__ == "__main__":
    sys.exit(main())
