"""``forge model``: a model folder from what a plugin ships."""

from __future__ import annotations

import shutil
import tempfile
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forge_core import UsageError
from forge_core.cli.table import print_table
from forge_run.shipped_models import model_makers

if TYPE_CHECKING:
    from forge_core import Forge, ModelMaker


@click.command()
@click.argument("name", required=False)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def model(app: Forge, name: str | None, folder: Path | None) -> None:
    """Write model NAME into FOLDER (default: models/NAME) in Hugging Face layout.

    Without NAME, list the models that plugins ship.
    """
    makers = model_makers(app.plugins)
    if name is None:
        rows = [(maker.name, maker.summary) for maker in makers.values()]
        print_table(("model", "summary"), rows, style="bold")
        return
    if name not in makers:
        near = get_close_matches(name, makers, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(makers) or "none"
        raise UsageError(f"no plugin ships a model called {name!r}{hint} (there are: {known})")
    target = Path("models") / name if folder is None else folder
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already; name another folder, or remove it first")
    _make(makers[name], target)
    click.echo(target)


def _make(maker: ModelMaker, target: Path) -> None:
    """Make the model beside its place and move it there whole: no half a folder is left."""
    from forge_models.folder import check_folder

    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        making.chmod(0o755)
        maker.make(making)
        check_folder(making)
        making.replace(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)
