"""Tracker ``jsonl``: the run folder's ``metrics.jsonl``, ``episodes.jsonl`` and ``events.jsonl``.

Every line is one valid JSON object (numbers that are not finite are ``null``) and is on disk before
the run goes on. In ``metrics.jsonl`` only ``timing`` depends on the clock: two runs with one seed
differ there and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from forge_core.run.records import Event, RunInfo, StepRecord, Summary
from forge_core.types import Episode

METRICS = "metrics.jsonl"
EPISODES = "episodes.jsonl"
EVENTS = "events.jsonl"

RESERVED = ("step", "stage", "stage_step", "timing")
"""Keys of a line in ``metrics.jsonl`` that no metric can be called."""


class JsonlTracker:
    """Writes what a run does into its folder, one line at a time.

    Args:
        episodes: most episodes written in a step.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._files: dict[str, TextIO] = {}
        self._stage = ""

    def start(self, run: RunInfo) -> None:
        """Open the files. Lines of steps that a resumed run does again are cut off."""
        for name in (METRICS, EPISODES):
            cut_after(run.folder / name, run.resumed_from or 0)
        for name in (METRICS, EPISODES, EVENTS):
            self._files[name] = (run.folder / name).open("a", encoding="utf-8")
        self._write_event(time.time(), "run_started", f"run {run.name}", asdict(run))

    def step(self, record: StepRecord) -> None:
        """Write a line of metrics.

        Raises:
            ValueError: a metric has a reserved name.
        """
        self._stage = record.stage
        for name in RESERVED:
            if name in record.metrics:
                raise ValueError(f"a metric cannot be called {name!r}: {METRICS} uses that name")
        self._write(
            METRICS,
            {
                "step": record.step,
                "stage": record.stage,
                "stage_step": record.stage_step,
                **record.metrics,
                "timing": dict(record.timing),
            },
        )

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Write some of a step's episodes, evenly spread over them."""
        count = min(self._episodes, len(episodes))
        for index in range(count):
            episode = episodes[index * len(episodes) // count]
            self._write(EPISODES, {"step": step, "stage": self._stage, **_described(episode)})

    def event(self, event: Event) -> None:
        """Write a line of the timeline."""
        self._write_event(event.time, event.kind, event.message, event.data)

    def finish(self, summary: Summary) -> None:
        """Write how the run ended and close the files."""
        if self._files:
            self._write_event(time.time(), "run_finished", summary.message, asdict(summary))
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write_event(self, at: float, kind: str, message: str, data: Mapping[str, Any]) -> None:
        self._write(EVENTS, {"time": at, "kind": kind, "message": message, "data": data})

    def _write(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        file.write(json.dumps(_plain(line), allow_nan=False) + "\n")
        file.flush()


def cut_after(path: Path, step: int) -> None:
    """Keep the lines up to a step, in order; drop later ones and one cut short by a crash.

    Atomic: the file is replaced or stays as it is.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # the process died while it wrote this one
            continue
        if record["step"] <= step:
            kept.append(line + "\n")
    aside = path.with_name(path.name + ".aside")
    aside.write_text("".join(kept), encoding="utf-8")
    os.replace(aside, path)


def _described(episode: Episode) -> dict[str, Any]:
    """An episode for a file. ``versions`` is -1 for tokens that the policy did not sample."""
    return {
        "task": episode.task.id,
        "prompt": episode.prompt_text,
        "completions": episode.completion_texts,
        "answer": episode.task.answer,
        "reward": episode.reward,
        "rewards": episode.rewards,
        "advantage": episode.advantage,
        "truncated": episode.truncated,
        "failures": episode.failures,
        "tokens": episode.tokens,
        "versions": episode.versions,
    }


def _plain(value: Any) -> Any:
    """The same as JSON can say it: no NaN, no infinity, no type but its own."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
