"""``forge plan``: what a config would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forge_core.cli.arguments import split_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge_core.app import Forge
    from forge_core.component import Placement
    from forge_core.run.memory import Memory
    from forge_core.run.outlook import StageOutlook

UNITS = {"MiB": 2**20, "GiB": 2**30}


@click.command()
@click.argument("arguments", nargs=-1, metavar="[PRESET-or-FILE] [KEY=VALUE ...]")
@click.pass_obj
def plan(app: Forge, arguments: tuple[str, ...]) -> None:
    """Say what a config would take before anything starts: placement, memory, staleness.

    Needs no weights and no data; the model's config.json is enough. Parameters, gradients and
    optimizer state are exact, activations an estimate for the longest sequences allowed.
    """
    from forge_core.run.cautions import cautions
    from forge_core.run.outlook import outlook

    source, overrides = split_arguments(arguments)
    config = app.resolve(source, overrides)
    stages = outlook(config)
    click.echo(f"plan of {config.name}: runtime {config.runtime.name}")
    for stage in stages:
        _show(stage)
    for line in cautions(config):
        click.echo(f"\nwarning: {line}")


def _show(stage: StageOutlook) -> None:
    config = stage.config
    click.echo(f"\nstage {config.name}: recipe {config.recipe.name}")
    for section, (name, placement) in stage.placements.items():
        click.echo(f"  {f'{section} ':<12}{name}{', ' if name else ''}{_placement(placement)}")
    longest = ""
    if stage.longest:
        longest = f", each of at most {stage.longest.tokens:,} tokens ({stage.longest.source})"
    click.echo(f"  {'step':<12}{stage.sequences:,} sequences{longest}")
    if stage.staleness is not None:
        how = "strictly on-policy" if stage.staleness == 0 else "optimizer steps at most"
        click.echo(f"  {'staleness':<12}{stage.staleness} ({how})")
    for section, memory in stage.memory.items():
        _show_memory(section, memory)


def _placement(placement: Placement) -> str:
    replicas = "1 replica" if placement.replicas == 1 else f"{placement.replicas} replicas"
    return f"{replicas} of {placement.procs} rank{'' if placement.procs == 1 else 's'}"


def _show_memory(section: str, memory: Memory | str) -> None:
    if isinstance(memory, str):
        click.echo(f"  {'memory':<12}of the {section} not known: {memory}")
        return
    if memory.layout:
        click.echo(f"  {'ranks':<12}{memory.layout}")
    total = max(sum(memory.device.values()), sum(memory.host.values()))
    unit = "GiB" if total >= UNITS["GiB"] else "MiB"
    click.echo(f"  {'memory':<12}{unit} of the {section}'s fullest rank")
    for place, terms in (("device", memory.device), ("host", memory.host)):
        _show_terms(place, terms, memory.tokens, UNITS[unit])


def _show_terms(place: str, terms: Mapping[str, int], tokens: int, unit: int) -> None:
    for name, size in terms.items():
        note = f"  (an estimate, {tokens:,} tokens at a time)" if name == "activations" else ""
        click.echo(f"    {name:<20}{size / unit:>10.3f}{note}")
    if terms:
        click.echo(f"    {f'total on the {place}':<20}{sum(terms.values()) / unit:>10.3f}")
