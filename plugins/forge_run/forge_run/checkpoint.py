"""Checkpoints: complete or not there at all, and proved before they are used.

A checkpoint is a folder ``step_N``: the model in Hugging Face layout and whatever else the trainer
writes, ``services/NAME`` (what the recipe's own services keep), ``state.json`` (where the run
stands), ``replay_buffer.json`` (groups sampled ahead of their step), ``rollout.json`` (groups that
more steps are trained on), ``manifest.json`` (each file's size and checksum). It is written beside
its final place and renamed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forge_core import CheckpointingSection, DataError
from forge_core.manifest import MANIFEST, seal, verify
from forge_run import durable

STATE = "state.json"
REPLAY_BUFFER = "replay_buffer.json"
ROLLOUT = "rollout.json"
"""Groups that some of their optimizer steps have been trained on."""
SERVICES = "services"
"""Folder with a folder for each of the recipe's own services that is kept."""
DAMAGED = "damaged_"
"""Prefix of a checkpoint that a resume has skipped."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands. With the trainer's files, the next step is what it would have been.

    Args:
        step: steps done in the whole run.
        stage: name of the stage the checkpoint was taken in.
        stage_step: steps done in that stage.
        stage_done: the stage has reached its target.
        version: policy version last published.
        versions: last published of the recipe's own trainers, by name.
        position: tasks taken from the dataset for the steps that are done.
        python_rng: state of the ``random`` module, which recipes and plugins may use.
        recipe_state: what the recipe keeps (``stage.recipe_state``).
        seconds: wall-clock time of the run's processes so far.
        metrics: of the last step.
        evaluations: fields of each ``Evaluation`` so far; None: an older version did not say.
    """

    step: int
    stage: str
    stage_step: int
    stage_done: bool
    version: int
    position: int
    python_rng: list[Any]
    versions: dict[str, int] = field(default_factory=dict)
    recipe_state: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] | None = None


class SaveTimes:
    """When a stage writes a checkpoint, beside its end: every so many steps, and so many minutes
    after the last one.

    Args:
        section: of the config.
        clock: seconds that never go back.
    """

    def __init__(
        self, section: CheckpointingSection, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = section.save_interval
        self._minutes = section.save_interval_minutes
        self._clock = clock
        self._saved_at = clock()

    def due(self, step: int) -> bool:
        """Whether to write one after this step."""
        if self._steps is not None and step % self._steps == 0:
            return True
        return self._minutes is not None and self._clock() >= self._saved_at + 60 * self._minutes

    def saved(self) -> None:
        """One was written."""
        self._saved_at = self._clock()


class CheckpointStore:
    """The ``checkpoints`` folder of a run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    @contextmanager
    def draft(self, step: int, *, confirm: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """A folder to write into. When the block ends it is sealed with its manifest and put in
        place, and checkpoints that are too old are dropped.

        Args:
            step: of the run.
            confirm: called last before it is put in place; raises if it must not be.

        Raises:
            RunFailed: it could not be written; nothing of it is left.
        """
        for left in self.folder.glob(".step_*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with durable.new_folder(self.path(step)) as draft:
            yield draft
            seal(draft)
            confirm()
        self._prune()

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, lowest first."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(path.name.removeprefix("step_"))
            for path in self.folder.glob("step_*")
            if path.name.removeprefix("step_").isdecimal() and (path / MANIFEST).is_file()
        )

    def newest_whole(self, *, model_only: bool = False) -> tuple[int | None, dict[int, str]]:
        """The newest step whose files are all as they were written, and why newer ones are not it.

        Args:
            model_only: look at the model's files only, not at the trainer's state.

        Raises:
            DataError: there are checkpoints, and all of them are damaged.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                self.verify(step, model_only=model_only)
            except DataError as error:
                if not self.path(step).is_dir():  # a run under way has dropped it for a newer one
                    return self.newest_whole(model_only=model_only)
                damaged[step] = str(error)
            else:
                return step, damaged
        if damaged:
            raise DataError(f"{self.folder}: no checkpoint is whole; {'; '.join(damaged.values())}")
        return None, damaged

    def set_aside(self, step: int) -> None:
        """Take a damaged checkpoint out of the way of those that will be written."""
        target = self.folder / f"{DAMAGED}step_{step}"
        shutil.rmtree(target, ignore_errors=True)
        self.path(step).rename(target)

    def state(self, step: int) -> RunState:
        """Where the run stood.

        Raises:
            DataError: the file cannot be read.
        """
        path = self.path(step) / STATE
        try:
            return RunState(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path}: cannot be read ({error})") from None

    def verify(self, step: int, *, model_only: bool = False) -> Path:
        """Compare every file of a checkpoint with its manifest, and return its folder.

        Args:
            step: of the run.
            model_only: look at the model's files only, not at the trainer's state.

        Raises:
            DataError: a file is missing or differs; names it.
        """
        place = self.path(step)
        verify(place, model_only=model_only)
        return place

    def _prune(self) -> None:
        """Keep the newest ones, and the last of every finished stage: the next one began there."""
        for step in self.steps()[: -self.keep]:
            try:
                is_last = self.state(step).stage_done
            except DataError:  # left for a person to look at
                continue
            if not is_last:
                durable.remove(self.path(step))


def write_state(folder: Path, state: RunState) -> None:
    """Write a checkpoint's ``state.json``."""
    (folder / STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")
