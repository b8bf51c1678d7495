"""``forge runs``: what was run in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from forge_core import DataError
from forge_core.cli.table import print_table
from forge_core.config.in_force import CONFIG
from forge_run.checkpoint import CheckpointStore
from forge_run.folder import RunFolder
from forge_run.writer import holder_of


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def runs(folder: Path, as_json: bool) -> None:
    """List the run folders in FOLDER (default: runs), newest last."""
    rows, troubles = [], []
    for path in _found(folder):
        row, trouble = _describe(path)
        rows.append(row)
        troubles += trouble
    for line in troubles:
        click.echo(f"warning: {line}", err=True)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo(f"no runs in {folder}")
        return
    columns = list(rows[0])
    print_table(columns, [[_text(row[column]) for column in columns] for row in rows])


def _found(folder: Path) -> list[Path]:
    """Run folders, those that were changed last at the end; one may vanish meanwhile."""
    changed = []
    for path in folder.glob(f"*/{CONFIG}"):
        try:
            changed.append((path.parent.stat().st_mtime, path.parent))
        except OSError:
            continue
    return [path for _, path in sorted(changed)]


def _describe(path: Path) -> tuple[dict[str, Any], list[str]]:
    """A line of the table, and what could not be read for it.

    A run that no process writes and that has no summary was killed before its first end.
    """
    troubles, summary = [], None
    outcome = "unfinished"
    try:
        summary = RunFolder(path).read_summary()
        outcome = summary.outcome if summary else outcome
    except DataError as error:
        outcome = "unknown"
        troubles.append(f"{error}; its outcome is not known")
    if holder_of(path) is not None:
        outcome = "running"
    try:
        steps = CheckpointStore(path / "checkpoints", keep=1).steps()
    except OSError as error:
        steps = []
        troubles.append(f"{path / 'checkpoints'}: cannot be read: {error.strerror}")
    evaluations = summary.evaluations if summary else ()
    row = {
        "run": path.name,
        "outcome": outcome,
        "steps": summary.steps if summary else None,
        "score": evaluations[-1].score if evaluations else None,
        "seconds": summary.seconds if summary else None,
        "checkpoint": f"step_{steps[-1]}" if steps else None,
    }
    return row, troubles


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
