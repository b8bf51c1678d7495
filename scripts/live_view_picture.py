"""Draw a run's live view as it was at some step: ``python scripts/live_view_picture.py RUN``.

Reads ``metrics.jsonl``, ``episodes.jsonl`` and ``events.jsonl`` of a run folder and writes an SVG.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from forge_console.frame import frame
from forge_console.history import RunHistory
from forge_core import Episode, Event, RunInfo, StageInfo, StepRecord, Task
from forge_run.trackers.jsonl import EPISODES, EVENTS, RESERVED
from forge_run.trackers.lines import METRICS


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def timed_steps(folder: Path, events: list[Event]) -> Iterator[tuple[float, StepRecord]]:
    """Each step with the time at which it ended, as far as the events and timings tell."""
    lines = read(folder / METRICS)
    stage_steps = {line["stage"]: line["stage_step"] for line in lines}
    planned = {e.data["stage"]: e.data["steps"] for e in events if e.kind == "stage_started"}
    begins = {e.data["stage"]: e.time for e in events if e.kind == "stage_started"}
    scored = sorted((e.data["step"], e.time) for e in events if e.kind == "evaluation")
    now = 0.0
    for line in lines:
        waited = [at for step, at in scored if step < line["step"]]
        begin = max([now, begins.get(line["stage"], 0.0), *waited])
        now = begin + line["timing"]["step_seconds"]
        metrics = {
            name: value
            for name, value in line.items()
            if name not in RESERVED and value is not None
        }
        yield (
            now,
            StepRecord(
                step=line["step"],
                stage=line["stage"],
                stage_step=line["stage_step"],
                stage_steps=planned.get(line["stage"], stage_steps[line["stage"]]),
                metrics=metrics,
                timing=line["timing"],
            ),
        )


def history_at(folder: Path, last_step: int | None) -> tuple[RunHistory, float]:
    """What the console knew after a step, and when that was.

    Args:
        folder: a run folder.
        last_step: step of the run; None: the last one.
    """
    events = [Event(**line) for line in read(folder / EVENTS)]
    info = dict(next(event for event in events if event.kind == "run_started").data)
    info["folder"] = folder
    info["stages"] = [StageInfo(**stage) for stage in info["stages"]]
    started = next(event.time for event in events if event.kind == "run_started")
    history = RunHistory(RunInfo(**info), started)
    steps = list(timed_steps(folder, events))
    if last_step is not None:
        steps = [(at, record) for at, record in steps if record.step <= last_step]
    now, last = steps[-1]
    shown = [
        event
        for event in events
        if event.kind not in ("run_started", "run_finished")
        and event.time <= now
        and event.data.get("step", 0) <= last.step
    ]
    episodes = read(folder / EPISODES) if (folder / EPISODES).exists() else []
    # Events that end a step come after it: they come second where both have one time.
    told: list[tuple[float, int, Event | StepRecord]] = [(at, 0, record) for at, record in steps]
    told += [(event.time, 1, event) for event in shown]
    for at, _, item in sorted(told, key=lambda entry: entry[:2]):
        if isinstance(item, StepRecord):
            history.add_step(item, at)
        else:
            history.add_event(item)
    for line in episodes:
        if line["step"] <= last.step:
            history.add_episode(line["step"], _episode(line))
    return history, now


def _episode(line: dict[str, Any]) -> Episode:
    return Episode(
        task=Task(id=line["task"], prompt=line["prompt"], answer=line["answer"]),
        turns=[],
        prompt_text=line["prompt"],
        completion_texts=line["completions"],
        rewards=line["rewards"],
        reward=line["reward"],
        advantage=line["advantage"],
        failures=line["failures"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--output", type=Path, default=Path("docs/images/live-view.svg"))
    parser.add_argument("--step", type=int, help="as it stood after this step; default: the last")
    parser.add_argument("--width", type=int, default=110, help="cells")
    parser.add_argument("--height", type=int, default=32, help="lines")
    options = parser.parse_args()
    history, now = history_at(options.run, options.step)
    console = Console(record=True, width=options.width, force_terminal=True, file=io.StringIO())
    for line in frame(history, options.width, options.height, now):
        console.print(line, no_wrap=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(options.output), title=f"forge run {history.run.name}")
    print(options.output)


if __name__ == "__main__":
    main()
