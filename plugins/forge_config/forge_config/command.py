"""``forge config``: look at configs before they run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from forge_core import UsageError
from forge_core.cli.arguments import is_override, split_arguments

if TYPE_CHECKING:
    from forge_config.explain import Explanation
    from forge_core import Forge, Provenance


@click.group()
def config() -> None:
    """Show, explain and compare configs.

    SOURCE is a preset, a YAML file or a run folder; without one, there are only defaults.
    KEY=VALUE sets a key, ~KEY removes what lower layers said.
    """


@config.command()
@click.argument("arguments", nargs=-1, metavar="[SOURCE] [KEY=VALUE ...]")
@click.option("--stage", metavar="NAME", help="Only that stage, as a config of its own.")
@click.pass_obj
def show(app: Forge, arguments: tuple[str, ...], stage: str | None) -> None:
    """Print the whole config with every value a run would use; it loads again as it stands."""
    from forge_core.config.effective import stage_tree, to_yaml

    source, overrides = split_arguments(arguments)
    resolved = app.resolve(source, overrides)
    tree: Mapping[str, Any] = resolved.tree
    if stage is not None:
        names = [known.name for known in resolved.stages]
        if stage not in names:
            raise UsageError(f"--stage {stage}: no such stage (allowed: {', '.join(names)})")
        tree = stage_tree(tree, stage)
    _print_yaml(to_yaml(tree))


@config.command()
@click.argument("key")
@click.argument("arguments", nargs=-1, metavar="[SOURCE] [KEY=VALUE ...]")
@click.pass_obj
def explain(app: Forge, key: str, arguments: tuple[str, ...]) -> None:
    """Say where the value of KEY came from, what it overrode and what it may be.

    \b
    forge config explain trainer.lr my.yaml
    forge config explain loss my.yaml
    forge config explain stages.second.training.steps my.yaml training.steps=5
    """
    from forge_config.explain import explain as explain_key

    if is_override(key):
        raise UsageError(f"{key}: name the key to explain first, such as trainer.lr")
    source, overrides = split_arguments(arguments)
    found = explain_key(app.resolve(source, overrides), key)
    click.echo("\n\n".join("\n".join(_explanation(item, key)) for item in found))


@config.command()
@click.option("--family", metavar="F", help="Only one component: its family, such as loss.")
@click.option("--component", metavar="C", help="Its name.")
@click.pass_obj
def schema(app: Forge, family: str | None, component: str | None) -> None:
    """Print the JSON Schema of configs with all installed components; editors can use it."""
    from forge_config.schema import component_schema, config_schema

    catalog = app.plugins.catalog
    if (family is None) != (component is None):
        raise UsageError("--family and --component belong together")
    if family is not None and component is not None:
        found = component_schema(catalog, family, component)
    else:
        found = config_schema(catalog)
    click.echo(json.dumps(found, indent=2))


@config.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.pass_obj
def diff(app: Forge, left: str, right: str) -> None:
    """Print every value in which two configs differ, and where each came from.

    A and B are presets, YAML files or run folders. FORGE_* variables are left out.
    """
    from forge_config.explain import differences
    from forge_core.config.resolve import resolve
    from forge_core.config.sources import ENVIRONMENT_PREFIX

    # They would lie over both sides and hide what differs.
    environ = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_PREFIX)}
    sides = [resolve(app.plugins.catalog, side, environ=environ) for side in (left, right)]
    found = differences(*sides)
    for difference in found:
        click.echo(difference.key)
        click.echo(f"  - {_side(difference.left, difference.key)}")
        click.echo(f"  + {_side(difference.right, difference.key)}")
    if not found:
        click.echo("no difference")


def _print_yaml(text: str) -> None:
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text, "yaml", theme="ansi_dark", word_wrap=True))


def _explanation(item: Explanation, asked: str) -> list[str]:
    from forge_core.config.yaml_source import dump_inline

    came = item.provenance
    rows: list[tuple[str, str]] = [
        ("from", _place(came, item.key)),
        *(("overrode", _value_and_place(past, item.key)) for past in came.overrode),
        ("meaning", item.description),
        ("allowed", item.allowed),
        ("default", item.default),
    ]
    return [
        f"{_title(item.key, asked)} = {dump_inline(came.value)}",
        *(f"  {word:<10}{text}" for word, text in rows if text),
    ]


def _title(key: str, asked: str) -> str:
    """The key, after the name it was asked by where that is an alias."""
    from forge_core.sections import ALIASES

    return f"{asked} ({key})" if ALIASES.get(asked) == key else key


def _side(provenance: Provenance | None, key: str) -> str:
    return "(not there)" if provenance is None else _value_and_place(provenance, key)


def _value_and_place(provenance: Provenance, key: str) -> str:
    from forge_core.config.yaml_source import dump_inline

    return f"{dump_inline(provenance.value)}  ({_place(provenance, key)})"


def _place(provenance: Provenance, key: str) -> str:
    """The layer, the exact place in it, and the key as typed where it has another name."""
    layer, where, typed = provenance.layer, provenance.where, provenance.key
    alias = typed.rpartition(".")[2] != key.rpartition(".")[2] and typed not in where
    parts = [layer if layer != "file" else "", where if where != layer else ""]
    return ", ".join(filter(None, parts)) + (f", typed as {typed}" if alias else "")
