"""A made-up run to look at: ``python plugins/forge_console/demo.py --seconds 20``."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from forge_console.settings import ConsoleSettings
from forge_console.view import make_view
from forge_run.settings import JsonlSettings
from forge_run.trackers.jsonl import JsonlTracker
from forge_testing.demo import STAGES, replay


class WallClock:
    """The time that it is."""

    def __call__(self) -> float:
        return time.time()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--view", choices=("auto", "live", "plain"), default="auto")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long it takes")
    parser.add_argument("--outcome", choices=("finished", "failed"), default="finished")
    parser.add_argument("--folder", type=Path, help="run folder; default: a temporary one")
    options = parser.parse_args()
    console = make_view(ConsoleSettings(view=options.view, interval=2.0))
    steps = sum(stage.steps or 0 for stage in STAGES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        replay(
            [console, JsonlTracker(JsonlSettings(episodes=4))],
            folder,
            step_seconds=options.seconds / steps,
            clock=WallClock(),
            outcome=options.outcome,
        )


if __name__ == "__main__":
    main()
