"""``forge presets``: the configs that plugins ship."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from forge_core.app import Forge


@click.command()
@click.pass_obj
def presets(app: Forge) -> None:
    """List the configs that plugins ship: what to write behind ``forge run``."""
    catalog = app.plugins.catalog
    entries = [*catalog.presets("run"), *catalog.presets("model")]
    if not entries:
        click.echo("no plugin ships a preset")
        return
    rows = [
        (entry.name, entry.preset.kind, entry.preset.summary, str(entry.provider))
        for entry in entries
    ]
    rows.insert(0, ("preset", "kind", "summary", "from"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
