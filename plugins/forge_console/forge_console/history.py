"""What the console remembers of a run: its curves, its latest numbers, episode and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forge_console.curves import Point
from forge_core import Episode, Event, RunInfo, StageInfo, StepRecord
from forge_run.trackers.lines import METRICS, JsonLines

CURVES = (
    "reward/mean",
    "loss",
    "entropy",
    "completion/length_mean",
    "mismatch/logprob_abs_mean",
)
"""Metrics whose course is kept."""

MOST_POINTS = 4000
"""Of a curve; a longer one is thinned, so that a long run does not grow without end."""

ALARMS = frozenset({"warning", "failed", "stopping", "waiting"})


def is_alarm(event: Event) -> bool:
    """Whether a person should look at it."""
    return event.kind in ALARMS or event.kind.endswith(("_died", "_failed"))


@dataclass(slots=True)
class RunHistory:
    """Grows as a run goes on. Times are seconds since the epoch.

    Args:
        run: what was said at the start.
        started: when.

    Attributes:
        components: what runs in the stage: section -> component name.
        record: of the last step.
        recorded: when that step ended; 0 in a stage without one.
        curves: metric -> (step, value) of the stage's steps; stages may differ in what it means.
        scores: (step, held-out score).
        alarms: how many events a person should look at.
        episode: a sampled one, of step ``episode_step``.
    """

    run: RunInfo
    started: float
    components: Mapping[str, str] = field(init=False)
    stage: int = 0
    record: StepRecord | None = None
    recorded: float = 0.0
    curves: dict[str, list[Point]] = field(default_factory=dict)
    scores: list[Point] = field(default_factory=list)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=100))
    alarms: int = 0
    episode: Episode | None = None
    episode_step: int = 0
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=20))

    def __post_init__(self) -> None:
        self.components = self.run.components
        self.scores += [(float(each.step), each.score) for each in self.run.evaluations]

    def add_step(self, record: StepRecord, now: float) -> None:
        if self.recorded:  # the first step of a stage also pays for what is started with it
            self._intervals.append(now - self.recorded)
        self.record, self.recorded = record, now
        self._add_points(record.step, record.metrics)

    def _add_points(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name in CURVES:
            value = metrics.get(name)
            if isinstance(value, int | float):
                points = self.curves.setdefault(name, [])
                points.append((float(step), value))
                if len(points) > MOST_POINTS:
                    points[:] = _halved(points)

    def _add_earlier(self, stage: str) -> None:
        """The steps of the stage that earlier processes of the run did, as far as it kept them."""
        if self.run.resumed_from is not None:
            for _, line in JsonLines(self.run.folder / METRICS, self.run.resumed_from):
                if line.get("stage") == stage:
                    self._add_points(line["step"], line)

    def add_event(self, event: Event) -> None:
        self.events.append(event)
        self.alarms += is_alarm(event)
        if event.kind == "stage_started":
            self.stage = int(event.data["index"])
            self.components = event.data.get("components", self.components)
            self.recorded = 0.0
            self._intervals.clear()
            self.curves.clear()
            self._add_earlier(self.stage_info.name)
        elif event.kind == "evaluation":
            self.scores.append((float(event.data["step"]), float(event.data["score"])))

    def add_episode(self, step: int, episode: Episode) -> None:
        self.episode, self.episode_step = episode, step

    @property
    def stage_info(self) -> StageInfo:
        return self.run.stages[self.stage]

    @property
    def stage_steps(self) -> int | None:
        """Target of the stage."""
        return self.stage_info.steps

    @property
    def stage_step(self) -> int:
        """Steps of the stage that are done."""
        in_stage = self.record is not None and self.record.stage == self.stage_info.name
        return self.record.stage_step if in_stage and self.record else 0

    @property
    def total_steps(self) -> int | None:
        """Target of the whole run, if every stage has one."""
        steps = [stage.steps for stage in self.run.stages]
        return sum(s for s in steps if s is not None) if None not in steps else None

    def seconds_left(self, now: float) -> float | None:
        """Expected time to the end of the stage, from its last steps (evaluations included)."""
        if self.stage_steps is None or not self._intervals or self.stage_step == self.stage_steps:
            return None
        each = sum(self._intervals) / len(self._intervals)
        since = now - self.recorded
        return max(0.0, each * (self.stage_steps - self.stage_step) - since)


def _halved(points: list[Point]) -> list[Point]:
    """Each two neighbours as their mean."""
    return [
        ((x0 + x1) / 2, (y0 + y1) / 2)
        for (x0, y0), (x1, y1) in zip(points[::2], points[1::2], strict=False)
    ]
