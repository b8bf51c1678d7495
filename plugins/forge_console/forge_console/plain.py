"""The console without a terminal: lines that read well in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import IO

from forge_console.history import RunHistory, is_alarm
from forge_console.summary import summary_lines
from forge_console.wording import duration, number
from forge_core import Episode, Event, RunInfo, StepRecord, Summary, streams

_VALUES = (("reward", "reward/mean"), ("loss", "loss"), ("kl", "kl"))
_RATES = (("sampled", "generated_tokens_per_second"), ("train", "train_tokens_per_second"))


class PlainLog:
    """Writes a line every so often, one for each event, and the summary.

    Args:
        file: where the lines go.
        interval: seconds between two lines of steps; the first and the last of a stage always come.
        clock: seconds since the epoch.
    """

    def __init__(
        self, file: IO[str], interval: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = file
        self._interval = interval
        self._clock = clock
        self._history: RunHistory | None = None
        self._due = 0.0
        self._lost = False

    def start(self, run: RunInfo) -> None:
        self._history = RunHistory(run, self._clock())
        stages = (
            f"{stage.name} ({stage.recipe}, {stage.steps or '?'} steps)" for stage in run.stages
        )
        self._line(f"run {run.name}: {', '.join(stages)}")
        self._line(", ".join(f"{family} {name}" for family, name in run.components.items()))
        self._line(f"folder {run.folder}")
        if run.resumed_from is not None:
            self._line(f"going on from step {run.resumed_from}")

    def step(self, record: StepRecord) -> None:
        assert self._history is not None
        now = self._clock()
        first = self._history.record is None or self._history.record.stage != record.stage
        self._history.add_step(record, now)
        if first or record.stage_step == record.stage_steps or now >= self._due:
            self._line(_described(self._history, now))
            self._due = now + self._interval

    def event(self, event: Event) -> None:
        assert self._history is not None
        self._history.add_event(event)
        kind = f"{event.kind.replace('_', ' ')}: " if is_alarm(event) else ""
        self._line(f"{_elapsed(self._history, event.time)}  {kind}{event.message}")

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """A log has no place for episodes; they are in ``episodes.jsonl``."""

    def finish(self, summary: Summary) -> None:
        self._line("")
        for line in summary_lines(self._history, summary):
            self._line(line.plain)

    def _line(self, text: str) -> None:
        try:
            self._file.write(text.rstrip() + "\n")
            self._file.flush()
            streams.check(self._file)
        except OSError as error:
            if not self._lost:
                self._lost = True
                folder = self._history.run.folder if self._history is not None else "?"
                streams.say(
                    f"warning: standard output: {error.strerror}; the run goes on in {folder}"
                )
            raise


def _elapsed(history: RunHistory, at: float) -> str:
    return f"{duration(at - history.started):>8}"


def _described(history: RunHistory, now: float) -> str:
    """The last step in columns that stay where they are from line to line."""
    record = history.record
    assert record is not None
    parts = [_elapsed(history, now), f"step {_of(record.step, history.total_steps)}"]
    if len(history.run.stages) > 1:
        parts.append(f"{record.stage} {_of(record.stage_step, record.stage_steps)}")
    for label, name in _VALUES:
        if name in record.metrics:
            parts.append(f"{label} {number(record.metrics[name]):>8}")
    if history.scores:
        parts.append(f"score {number(history.scores[-1][1]):>6}")
    for label, name in _RATES:
        if name in record.timing:
            parts.append(f"{label} {record.timing[name]:>7,.0f} tok/s")
    left = history.seconds_left(now)
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def _of(step: int, target: int | None) -> str:
    return str(step) if target is None else f"{step:>{len(str(target))}}/{target}"
