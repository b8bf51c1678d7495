"""``forge doctor``: a line for each thing looked at, and the line that fixes it."""

from __future__ import annotations

import os

import click

from forge_core import Forge
from forge_doctor.report import examine

COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@click.pass_context
def doctor(context: click.Context) -> None:
    """Say what is installed and what is wrong with it.

    Exit code 1 if something is wrong that stops runs.
    """
    app: Forge = context.obj
    findings = list(examine(app.plugins, os.environ))
    errors = sum(finding.level == "error" for finding in findings)
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        level = click.style(f"{finding.level:<8}", fg=COLORS[finding.level])
        click.echo(f"{level} {finding.subject:<{width}} {finding.text}")
        if finding.fix:
            click.echo(f"{'':8} {'fix with':<{width}} {finding.fix}")
    click.echo(f"\nstops runs: {errors}" if errors else "\nnothing here stops a run")
    if errors:
        context.exit(1)
