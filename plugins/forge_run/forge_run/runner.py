"""The runner of an app: makes runs from configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_core import Forge
from forge_run.code_files import check_files
from forge_run.folder import RunFolder
from forge_run.interrupt import interrupts_marked
from forge_run.preflight import usable_loss
from forge_run.session import RunSession

Source = str | Path | Mapping[str, Any] | None
Overrides = Sequence[str] | Mapping[str, Any]


class FolderRunner:
    """Implements ``forge_core.Runner``: each run has a folder with everything it leaves behind.

    Args:
        app: where configs are resolved and components come from.
    """

    def __init__(self, app: Forge) -> None:
        self._app = app

    def prepare(
        self, source: Source, overrides: Overrides, *, resume: Path | None = None
    ) -> RunSession:
        if resume is not None:
            check_files(RunFolder.open(resume).path)
        app = self._app
        config = app.resolve(_source(source, resume), overrides)
        with interrupts_marked():
            return RunSession(config, app.plugins, resume=resume or config.checkpointing.resume)

    def loss_overrides(
        self, source: Source, overrides: Sequence[str], loss: str, *, resume: Path | None = None
    ) -> list[str]:
        """The overrides of ``--loss NAME``: ``loss.use=NAME`` in each stage that can use it.

        Raises:
            UsageError: no stage can; says what the loss needs and what the recipe gives.
        """
        app, source = self._app, _source(source, resume)
        stages = app.resolve(source, overrides).stages
        if len(stages) == 1:
            return [f"loss.use={loss}"]
        changes = [f"stages.{stage.name}.loss.use={loss}" for stage in stages]
        problems = [
            usable_loss(app.resolve(source, [change, *overrides]).stages[index])
            for index, change in enumerate(changes)
        ]
        usable = [change for change, problem in zip(changes, problems, strict=True) if not problem]
        for problem in problems:
            if problem is not None and not usable:
                raise problem
        return usable


def _source(source: Source, resume: Path | None) -> Source:
    """A run that goes on does so with its own config, unless another is named."""
    return RunFolder.open(resume).config if source is None and resume is not None else source
