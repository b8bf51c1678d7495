"""``forge plugins``: what is installed, whether it works, and what it brings."""

from __future__ import annotations

import json
from typing import Any

import click

from forge_core.app import Forge
from forge_core.cli.table import print_table
from forge_core.plugins.checks import PRESET_KINDS
from forge_core.plugins.manager import PluginManager


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
def plugins(context: click.Context, as_json: bool) -> None:
    """List plugins with versions and health, and the components they bring."""
    app: Forge = context.obj
    if as_json:
        click.echo(json.dumps(describe(app.plugins), indent=1))
        return
    _print_plugins(app.plugins)
    _print_components(app.plugins)
    for line in app.plugins.catalog.conflicts():
        click.echo()
        click.secho(f"conflict: {line}", fg="yellow")
    if context.find_root().params["debug"]:
        for plugin in app.plugins.plugins():
            if plugin.trace:
                click.echo(f"\n{plugin.name}:\n{plugin.trace}", err=True)


def describe(manager: PluginManager) -> dict[str, Any]:
    """Everything the page shows, as plain data.

    ``{"plugins": [{name, distribution, version, status, cause}], "components": [{family, name,
    summary, default, provider, plugin}], "presets": [{name, kind, summary, provider, plugin}],
    "commands": [{name, summary, provider, plugin}], "conflicts": [line]}``
    """
    catalog = manager.catalog
    return {
        "plugins": [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "status": plugin.status,
                "cause": plugin.cause,
            }
            for plugin in manager.plugins()
        ],
        "components": [
            {
                "family": family,
                "name": entry.name,
                "summary": entry.component.summary,
                "default": entry.component.default,
                "provider": entry.provider.provider,
                "plugin": entry.provider.name,
            }
            for family in catalog.families
            for entry in catalog.entries(family)
        ],
        "presets": [
            {
                "name": entry.name,
                "kind": entry.preset.kind,
                "summary": entry.preset.summary,
                "provider": entry.provider.provider,
                "plugin": entry.provider.name,
            }
            for kind in PRESET_KINDS
            for entry in catalog.presets(kind)
        ],
        "commands": [
            {
                "name": entry.name,
                "summary": entry.command.summary,
                "provider": entry.provider.provider,
                "plugin": entry.provider.name,
            }
            for entry in catalog.commands()
        ],
        "conflicts": catalog.conflicts(),
    }


def _print_plugins(manager: PluginManager) -> None:
    rows = []
    for plugin in manager.plugins():
        source = str(plugin) if plugin.distribution else "handed over in code"
        rows.append((plugin.name, source, plugin.status, plugin.cause))
    print_table(("plugin", "distribution", "status", "cause"), rows, style="bold")


def _print_components(manager: PluginManager) -> None:
    catalog = manager.catalog
    rows = [
        (family, entry.name, entry.component.summary, entry.provider.provider)
        for family in catalog.families
        for entry in catalog.entries(family)
    ]
    if rows:
        click.echo()
        print_table(("family", "component", "summary", "provider"), rows)
