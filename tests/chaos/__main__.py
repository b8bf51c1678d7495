"""The campaign's command line."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import (
    cases,
    config_fuzz,
    crashes,
    damage,
    faults,
    hostile,
    resources,
    rivals,
    services,
    signals,
    soak,
    subject,
)

MODULES = (
    config_fuzz,
    crashes,
    signals,
    rivals,
    damage,
    resources,
    hostile,
    services,
    soak,
)
AREAS = {module.AREA.name: module.AREA for module in MODULES}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos.sh", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--cases", type=int, help="of each area; default: CI's")
    size.add_argument("--times", type=float, help="so many times CI's cases of each area")
    size.add_argument("--hours", type=float, help="shared evenly by the areas")
    size.add_argument("--case", type=int, help="this one alone, of the area that is named")
    parser.add_argument("--first", type=int, default=0, help="number of the first case; default 0")
    parser.add_argument("--area", action="append", choices=AREAS, help="may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="of everything random; default 0")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", action="store_true", help="keep the folders of cases")
    parser.add_argument("--json", type=Path, help="write what was tried and found there")
    return parser.parse_args()


def main() -> int:
    """0: nothing is wrong."""
    if "FORGE_CHAOS_SCRATCH" not in os.environ:
        return _again_with_library()
    scratch = Path(os.environ.pop("FORGE_CHAOS_SCRATCH"))
    faults.loaded()
    options = arguments()
    cases.Keep.folders = options.keep
    chosen = [AREAS[name] for name in options.area or AREAS]
    started = time.monotonic()
    subject.prepare(scratch)
    if any(area in (crashes.AREA, resources.AREA) for area in chosen) and not faults.missing():
        subject.World.calls = crashes.count_calls(scratch)
        print(f"points to crash at: {len(crashes.points())}", flush=True)
    if any(area is damage.AREA for area in chosen):
        subject.World.generated = damage.text_of_undisturbed(scratch)
    print(f"seed {options.seed}, {options.jobs} jobs, prepared in {_since(started)}", flush=True)
    report = {}
    for area in chosen:
        tally = cases.run_area(
            area, _numbers(options, area, len(chosen)), options.seed, scratch, options.jobs
        )
        if tally.skipped:
            print(f"{area.name:<10} skipped: {tally.skipped}", flush=True)
        else:
            print(
                f"{area.name:<10} tried {tally.tried:>7,}  wrong {len(tally.wrong):>3}  "
                f"in {tally.seconds:.0f} s  ({area.about})",
                flush=True,
            )
        report[area.name] = vars(tally)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    if options.keep:
        print(f"folders of cases: {scratch}")
    return 1 if any(tally["wrong"] for tally in report.values()) else 0


def _numbers(options: argparse.Namespace, area: cases.Area, areas: int) -> itertools.chain[int]:
    """Numbers of the cases to do."""
    if options.case is not None:
        return itertools.chain([options.case])
    if options.hours is not None:
        end = time.monotonic() + options.hours * 3600 / areas
        return itertools.chain(
            itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(options.first))
        )
    count = options.cases or round((options.times or 1) * area.ci)
    return itertools.chain(range(options.first, options.first + count))


def _since(moment: float) -> str:
    return f"{time.monotonic() - moment:.0f} s"


def _again_with_library() -> int:
    """This process once more, with the library that disturbs calls loaded into it."""
    scratch = Path(tempfile.mkdtemp(prefix="forge-chaos-"))
    try:
        library = faults.build(scratch)
        environ = {**os.environ, "FORGE_CHAOS_SCRATCH": str(scratch), "OMP_NUM_THREADS": "1"}
        if library is not None:
            environ["LD_PRELOAD"] = str(library)
        command = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
        return subprocess.run(command, env=environ, check=False).returncode
    finally:
        if "--keep" not in sys.argv:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
