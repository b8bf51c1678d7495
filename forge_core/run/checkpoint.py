"""Checkpoints: complete or not there at all, and proved before they are used.

A checkpoint is a folder ``step_N``: the model in Hugging Face layout and whatever else the trainer
writes, ``state.json`` (where the run stands), ``replay_buffer.json`` (groups sampled ahead of their
step), ``manifest.json`` (each file's size and checksum). It is written beside its final place and
renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forge_core.errors import DataError

MANIFEST = "manifest.json"
STATE = "state.json"
REPLAY_BUFFER = "replay_buffer.json"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands. With the trainer's files, the next step is what it would have been.

    Args:
        step: steps done in the whole run.
        stage: name of the stage the checkpoint was taken in.
        stage_step: steps done in that stage.
        stage_done: the stage has reached its target.
        version: policy version last published.
        position: tasks taken from the dataset for the steps that are done.
        python_rng: state of the ``random`` module, which recipes and plugins may use.
        extra: what the recipe keeps.
    """

    step: int
    stage: str
    stage_step: int
    stage_done: bool
    version: int
    position: int
    python_rng: list[Any]
    extra: dict[str, Any] = field(default_factory=dict)


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


class CheckpointStore:
    """The ``checkpoints`` folder of a run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    def begin(self, step: int) -> Path:
        """A fresh folder to write into; ``commit`` puts it in place."""
        draft = self.folder / f".step_{step}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft

    def commit(self, draft: Path, state: RunState) -> Path:
        """Seal the draft with state and manifest, move it into place, drop what is too old."""
        (draft / STATE).write_text(json.dumps(asdict(state)))
        files = sorted(path for path in draft.rglob("*") if path.is_file())
        manifest = {
            str(path.relative_to(draft)): {
                "bytes": path.stat().st_size,
                "blake2b": file_checksum(path),
            }
            for path in files
        }
        (draft / MANIFEST).write_text(json.dumps({"files": manifest}, indent=1))
        for path in [*files, draft / MANIFEST]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        place = self.path(state.step)
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)
        self._prune()
        return place

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, lowest first."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(path.name.removeprefix("step_"))
            for path in self.folder.glob("step_*")
            if (path / MANIFEST).is_file()
        )

    def state(self, step: int) -> RunState:
        return RunState(**json.loads((self.path(step) / STATE).read_text()))

    def verify(self, step: int) -> Path:
        """Compare every file with the manifest.

        Raises:
            DataError: a file is missing or differs; names it.
        """
        place = self.path(step)
        manifest = json.loads((place / MANIFEST).read_text())["files"]
        for name, expected in manifest.items():
            path = place / name
            if not path.is_file():
                raise DataError(f"checkpoint {place}: {name} is missing")
            if path.stat().st_size != expected["bytes"] or (
                file_checksum(path) != expected["blake2b"]
            ):
                raise DataError(f"checkpoint {place}: {name} is damaged (checksum differs)")
        return place

    def _prune(self) -> None:
        """Keep the newest ones, and the last of every finished stage: the next one began there."""
        for step in self.steps()[: -self.keep]:
            if not self.state(step).stage_done:
                shutil.rmtree(self.path(step))
