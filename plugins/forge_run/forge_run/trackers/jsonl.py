"""Tracker ``jsonl``: the run folder's ``metrics.jsonl``, ``episodes.jsonl`` and ``events.jsonl``.

Every line is one valid JSON object (numbers that are not finite are ``null``) and is on disk before
the run goes on. In ``metrics.jsonl`` only ``timing`` depends on the clock: two runs with one seed
differ there and nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from forge_core import Episode, Event, RunFailed, RunInfo, StepRecord, Summary
from forge_run.settings import JsonlSettings
from forge_run.trackers.lines import METRICS, JsonLines

EPISODES = "episodes.jsonl"
EVENTS = "events.jsonl"

RESERVED = ("step", "stage", "stage_step", "timing")
"""Keys of a line in ``metrics.jsonl`` that no metric can be called."""


class JsonlTracker:
    """Writes what a run does into its folder, one line at a time.

    Args:
        settings: how many episodes of a step are written.
    """

    record = True
    """The run's own record: what it cannot write fails the run."""

    def __init__(self, settings: JsonlSettings) -> None:
        self._episodes = settings.episodes
        self._files: dict[str, TextIO] = {}
        self._stage = ""

    def start(self, run: RunInfo) -> None:
        """Open the files. Lines of steps that a resumed run does again are cut off."""
        for lines in files_of(run.folder, run.resumed_from or 0):
            lines.restore()
        with contextlib.ExitStack() as opened:
            files = {
                name: opened.enter_context((run.folder / name).open("a", encoding="utf-8"))
                for name in (METRICS, EPISODES, EVENTS)
            }
            opened.pop_all()
        self._files.update(files)
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
        try:
            if self._files:
                self._write_event(time.time(), "run_finished", summary.message, asdict(summary))
        finally:
            for file in self._files.values():
                with contextlib.suppress(OSError):  # what could not be written has been reported
                    file.close()
            self._files.clear()

    def _write_event(self, at: float, kind: str, message: str, data: Mapping[str, Any]) -> None:
        self._write(EVENTS, {"time": at, "kind": kind, "message": message, "data": data})

    def _write(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        text = json.dumps(_plain(line), allow_nan=False) + "\n"
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            raise RunFailed(f"{file.name}: cannot be written: {error.strerror}") from error


def files_of(folder: Path, step: int) -> list[JsonLines]:
    """The three files of a run folder, as far as they go up to a step."""
    return [
        JsonLines(folder / METRICS, step),
        JsonLines(folder / EPISODES, step),
        JsonLines(folder / EVENTS),
    ]


def troubles(folder: Path, step: int) -> list[str]:
    """What is wrong with the files of a run that goes on from a step, one line each."""
    return [
        line
        for lines in files_of(folder, step)
        for line in lines.troubles(complete=lines.path.name == METRICS)
    ]


def _described(episode: Episode) -> dict[str, Any]:
    """An episode for a file. ``versions`` is -1 for tokens that the policy did not sample."""
    return {
        "task": episode.task.id,
        "prompt": episode.prompt_text,
        "completions": episode.completion_texts,
        "observations": episode.observation_texts,
        "answer": episode.task.answer,
        "reward": episode.reward,
        "rewards": episode.rewards,
        "metrics": episode.metrics,
        "turn_rewards": episode.turn_rewards,
        "agent": episode.agent,
        "advantage": episode.advantage,
        "truncated": episode.truncated,
        "failures": episode.all_failures,
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
    if isinstance(value, np.ndarray):
        numbers = value.tolist()
        return numbers if value.dtype.kind in "iub" else _plain(numbers)
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
