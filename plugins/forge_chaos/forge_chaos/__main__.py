"""``python -m forge_chaos RUN [--against UNDISTURBED]``: exit code 0 if every invariant holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forge_chaos.invariants import INVARIANTS, violations


def main() -> int:
    """Print what does not hold."""
    parser = argparse.ArgumentParser(prog="python -m forge_chaos", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that had tracker chaos")
    parser.add_argument("--against", type=Path, help="folder of the same run without faults")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="between the two; default: bit for bit"
    )
    options = parser.parse_args()
    found = violations(options.run, options.against, options.tolerance)
    for line in found:
        print(f"wrong: {line}")
    count = len(INVARIANTS) + (options.against is not None)
    print(f"{count} invariants, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
