"""``forge runs``: what was run in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from forge_core.cli.table import print_table
from forge_core.run.checkpoint import CheckpointStore
from forge_core.run.folder import CONFIG, SUMMARY


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def runs(folder: Path, as_json: bool) -> None:
    """List the run folders in FOLDER (default: runs), newest last."""
    found = sorted(
        (path.parent for path in folder.glob(f"*/{CONFIG}")), key=lambda path: path.stat().st_mtime
    )
    rows = [_describe(path) for path in found]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo(f"no runs in {folder}")
        return
    columns = list(rows[0])
    print_table(columns, [[_text(row[column]) for column in columns] for row in rows])


def _describe(path: Path) -> dict[str, Any]:
    """A run without a summary is still going on, or its process was killed."""
    summary: dict[str, Any] = {}
    if (path / SUMMARY).is_file():
        summary = json.loads((path / SUMMARY).read_text())
    steps = CheckpointStore(path / "checkpoints", keep=1).steps()
    evaluations = summary.get("evaluations") or []
    return {
        "run": path.name,
        "outcome": summary.get("outcome", "unfinished"),
        "steps": summary.get("steps"),
        "score": evaluations[-1]["score"] if evaluations else None,
        "seconds": summary.get("seconds"),
        "checkpoint": f"step_{steps[-1]}" if steps else None,
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
