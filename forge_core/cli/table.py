"""Tables that lose nothing: folded on a terminal, one line a row elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, style: str = "") -> None:
    """Print rows under column names. Nothing is cut off, however narrow the terminal.

    Args:
        columns: names, one for each cell of a row.
        rows: cells as text.
        style: rich style of the first column, on a terminal.
    """
    if sys.stdout.isatty():
        _print_rich(columns, rows, style)
    else:
        _print_plain(columns, rows)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", style=style if index == 0 else "")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
