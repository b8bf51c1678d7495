"""What trackers and lifecycle hooks receive. Plain data, safe to keep and to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["finished", "failed", "stopped", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInfo:
    """One stage as planned."""

    name: str
    recipe: str
    steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run that is about to start.

    Args:
        name: of the run.
        folder: the run folder.
        stages: in order, with their target steps where known.
        components: what runs: section -> component name, of the first stage.
        resumed_from: step it goes on from, or None.
        evaluations: held-out scores of earlier processes of the run.
    """

    name: str
    folder: Path
    stages: Sequence[StageInfo]
    components: Mapping[str, str] = field(default_factory=dict)
    resumed_from: int | None = None
    evaluations: Sequence[Evaluation] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step; one line of ``metrics.jsonl``.

    Args:
        step: counts on over all stages of a run, from 1.
        stage: name of the stage.
        stage_step: counts from 1 in the stage.
        stage_steps: the stage's target, or None.
        metrics: everything that is the same when the run is repeated with its seed.
        timing: seconds and rates; differs from run to run.
    """

    step: int
    stage: str
    stage_step: int
    stage_steps: int | None
    metrics: Mapping[str, float]
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; one line of ``events.jsonl``.

    Args:
        time: seconds since the epoch.
        kind: such as ``stage_started``, ``evaluation``, ``checkpoint``, ``waiting``,
            ``replica_died``, ``reward_failed``, ``warning``.
        message: one line for a person.
        data: the same for programs.
    """

    time: float
    kind: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A held-out score.

    Args:
        step: run step at which it was taken (0: before training).
        stage: name of the stage.
        moment: ``before``, ``during`` or ``after`` the stage.
        score: mean reward over tasks and samples.
        parts: the same for each reward part.
        tasks: how many were answered.
    """

    step: int
    stage: str
    moment: Literal["before", "during", "after"]
    score: float
    parts: Mapping[str, float]
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run ended.

    Args:
        outcome: ``finished`` (the target was reached), ``failed``, ``stopped``, ``interrupted``.
        exit_code: what the command ends with.
        message: the error in one line, or what was reached.
        folder: the run folder.
        steps: done in all.
        seconds: wall-clock time of all the processes that the run went through.
        metrics: of the last step.
        evaluations: in order.
        checkpoint: the newest, or None.
        warnings: what went wrong without ending the run, each line once, at most 100: warnings,
            rewards, trackers and plugins that failed.
    """

    outcome: Outcome
    exit_code: int
    message: str
    folder: Path
    steps: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluations: Sequence[Evaluation] = ()
    checkpoint: Path | None = None
    warnings: Sequence[str] = ()
