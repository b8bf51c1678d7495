"""``forge plan``: what a config would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forge_core.cli.arguments import split_arguments

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from forge_core import Forge, Placement
    from forge_run.estimate import Held, Longest, StageEstimate

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}


@click.command()
@click.argument("arguments", nargs=-1, metavar="[PRESET-or-FILE] [KEY=VALUE ...]")
@click.pass_obj
def plan(app: Forge, arguments: tuple[str, ...]) -> None:
    """Say what a config would take before anything starts: placement, memory, staleness.

    Needs no weights and no data; the model's config.json is enough. Parameters, gradients and
    optimizer state are exact, activations an estimate for the longest sequences allowed.
    """
    from forge_models.trust import check_section
    from forge_run.cautions import cautions
    from forge_run.estimate import estimate
    from forge_run.interrupt import interrupts_marked
    from forge_run.unused import unused_keys

    source, overrides = split_arguments(arguments)
    config = app.resolve(source, overrides)
    check_section(config.model)
    with interrupts_marked():
        stages = estimate(config)
        warnings = [*unused_keys(config), *cautions(config)]
    click.echo(f"plan of {config.name}: runtime {config.runtime.name}")
    for stage in stages:
        _show(stage)
    for line in warnings:
        click.echo(f"\nwarning: {line}")


def _show(stage: StageEstimate) -> None:
    config = stage.config
    click.echo(f"\nstage {config.name}: recipe {config.recipe.name}")
    for section, (name, placement) in stage.placements.items():
        click.echo(f"  {f'{section} ':<12}{name}{', ' if name else ''}{_placement(placement)}")
    longest = f", {_length(stage.longest)}" if stage.longest else ""
    click.echo(f"  {'step':<12}{stage.sequences:,} sequences{longest}")
    if stage.sampled:
        click.echo(f"  {'staleness':<12}{_staleness(stage)}")
    for section, held in stage.memory.items():
        _show_memory(section, held)


def _length(longest: Longest) -> str:
    tokens = f"{longest.tokens:,} tokens ({longest.source})"
    if longest.sampled:
        return f"each a prompt and a completion of at most {tokens}"
    return f"each of at most {tokens}"


def _staleness(stage: StageEstimate) -> str:
    if stage.staleness is None:
        return f"not known: recipe {stage.config.recipe.name} does not tell it"
    how = "strictly on-policy" if stage.staleness == 0 else "optimizer steps at most"
    return f"{stage.staleness} ({how})"


def _placement(placement: Placement) -> str:
    replicas = "1 replica" if placement.replicas == 1 else f"{placement.replicas} replicas"
    return f"{replicas} of {placement.procs} rank{'' if placement.procs == 1 else 's'}"


def _show_memory(section: str, held: Held | str) -> None:
    if isinstance(held, str):
        click.echo(f"  {'memory':<12}of the {section} not known: {held}")
        return
    memory = held.memory
    if memory.layout:
        click.echo(f"  {'ranks':<12}{memory.layout}")
    total = max(sum(memory.device.values()), sum(memory.host.values()))
    unit = next(name for name, size in UNITS.items() if total >= size or size == 1)
    click.echo(f"  {'memory':<12}{unit} of the {section}'s fullest rank")
    notes = {"activations": f"  ({_activations(held)})"}
    for place, terms in (("device", memory.device), ("host", memory.host)):
        left_out = () if held.bounded else ("activations",)
        _show_terms(place, terms, notes, left_out, unit)


def _activations(held: Held) -> str:
    """What the number for activations means."""
    longest, tokens = held.longest, f"{held.memory.tokens:,} tokens"
    if not held.bounded:
        key = longest.advice
        advice = f": give {key}" if key else ""
        return f"an estimate for each {tokens} of a forward pass; not known how many{advice}"
    note = f"an estimate, {tokens} at a time"
    if held.by_trainer:
        note += "; a longer sequence goes alone"
    return note + ("; prompts and further turns come on top" if longest.sampled else "")


def _show_terms(
    place: str,
    terms: Mapping[str, int],
    notes: Mapping[str, str],
    left_out: Collection[str],
    unit: str,
) -> None:
    for name, size in terms.items():
        click.echo(f"    {name:<20}{_size(size, unit)}{notes.get(name, '')}")
    if terms:
        counted = sum(size for name, size in terms.items() if name not in left_out)
        without = "".join(f", without {name}" for name in left_out if name in terms)
        click.echo(f"    {f'total on the {place}':<20}{_size(counted, unit)}{without}")


def _size(size: int, unit: str) -> str:
    """A size in a unit, or in a smaller one, then named, where few digits would be left."""
    if size == 0 or size / UNITS[unit] >= 0.01:
        return f"{size / UNITS[unit]:>10.3f}"
    smaller = next(name for name, one in UNITS.items() if size >= one)
    return f"{size / UNITS[smaller]:>10.3f} {smaller}"
