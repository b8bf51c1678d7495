"""Tracker ``tensorboard``: scalars in the run folder's ``tensorboard/``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_core import Episode, Event, RunInfo, StepRecord, Summary, UsageError
from forge_tensorboard.checks import INSTALL

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorboardTracker:
    """Writes metrics, timings and held-out scores over the run's steps.

    Raises:
        UsageError: the package that writes the files cannot be imported.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(f"tracker tensorboard: {error}; {INSTALL}") from error
        self._make_writer = SummaryWriter
        self._writer: SummaryWriter | None = None

    def start(self, run: RunInfo) -> None:
        """Open the event file; what a resumed run repeats replaces what was there."""
        again_from = None if run.resumed_from is None else run.resumed_from + 1
        self._writer = self._make_writer(log_dir=str(run.folder / FOLDER), purge_step=again_from)

    def step(self, record: StepRecord) -> None:
        """Write every metric under its name and every timing under ``timing/``."""
        assert self._writer is not None
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.step)
        for name, value in record.timing.items():
            self._writer.add_scalar(f"timing/{name}", value, record.step)

    def event(self, event: Event) -> None:
        """Write held-out scores under ``score/``; other events are no scalars."""
        if event.kind != "evaluation":
            return
        assert self._writer is not None
        step = event.data["step"]
        self._writer.add_scalar("score/mean", event.data["score"], step)
        for part, value in event.data["parts"].items():
            self._writer.add_scalar(f"score/{part}", value, step)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Episodes are in ``episodes.jsonl``."""

    def finish(self, summary: Summary) -> None:
        if self._writer is not None:
            self._writer.close()
