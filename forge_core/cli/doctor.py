"""``forge doctor``: a line for each thing looked at, and the line that mends it."""

from __future__ import annotations

import os

import click

from forge_core.app import Forge
from forge_core.doctor import examine

COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@click.pass_context
def doctor(context: click.Context) -> None:
    """Say what is installed and what is wrong with it.

    Exit code 1 if something is wrong that stops runs.
    """
    app: Forge = context.obj
    errors = 0
    for finding in examine(app.plugins, os.environ):
        errors += finding.level == "error"
        level = click.style(f"{finding.level:<8}", fg=COLORS[finding.level])
        click.echo(f"{level} {finding.subject:<16} {finding.text}")
        if finding.mend:
            click.echo(f"{'':8} {'mend it with':<16} {finding.mend}")
    click.echo(f"\nstops runs: {errors}" if errors else "\nnothing here stops a run")
    if errors:
        context.exit(1)
