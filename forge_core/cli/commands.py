"""The subcommands of ``forge``: each lives in its own module, imported when it is called."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from forge_core.cli import ready
from forge_core.command import COMMANDS, INSTALL_ENGINES
from forge_core.contracts.blame import described
from forge_core.contracts.errors import ForgeError, PluginError, UsageError

if TYPE_CHECKING:
    from forge_core.app import Forge


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called.

    Plugins are loaded only to list the commands, and for one that is not the kernel's.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return _imported(COMMANDS[cmd_name][0])
        if cmd_name.startswith("-"):
            return None  # click reports the option
        catalog = _app(ctx).plugins.catalog
        try:
            command = catalog.command(cmd_name)
        except PluginError as error:
            if get_close_matches(cmd_name, [entry.name for entry in catalog.commands()]):
                raise
            raise PluginError(
                f"{error}; a plugin that is not installed may add it (in a clone of Forge's "
                f"repository: {INSTALL_ENGINES})"
            ) from None
        try:
            return _imported(command.target)
        except Exception as error:
            raise PluginError(
                f"command {cmd_name!r}: {command.target} cannot be used: {described(error)}"
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries(ctx).items()))

    def _summaries(self, ctx: click.Context) -> dict[str, str]:
        summaries = {name: summary for name, (_, summary) in COMMANDS.items()}
        # Help is shown whatever is wrong with the plugins; other commands say what it is.
        with suppress(ForgeError):
            for entry in _app(ctx).plugins.catalog.commands():
                summaries.setdefault(entry.name, entry.command.summary)
        return dict(sorted(summaries.items()))


def _imported(target: str) -> click.Command:
    """The command that ``module:attribute`` names."""
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"it is no click.Command: {command!r}")
    return command


def _app(ctx: click.Context) -> Forge:
    """The app of this call, made when it is first asked for."""
    if ctx.obj is None:
        from forge_core.app import Forge

        ctx.obj = Forge(disabled=ctx.params.get("disabled", ()))
    app: Forge = ctx.obj
    return app


def _names(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> list[str]:
    for item in given:
        if not item.startswith("no:") or len(item) == 3:
            raise click.UsageError(f"-p takes no:NAME, not {item!r}")
    return [item[3:] for item in given]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "-p",
    "disabled",
    multiple=True,
    is_eager=True,  # --help lists the commands of the plugins that are left
    callback=_names,
    metavar="no:NAME",
    help="Leave a plugin out. Also FORGE_DISABLE_PLUGINS=a,b and FORGE_PLUGIN_AUTOLOAD=0.",
)
@click.version_option(package_name="forge-rl-core", prog_name="forge")
@click.pass_context
def forge(ctx: click.Context, debug: bool, disabled: list[str]) -> None:
    """Post-training for language models: a small kernel, everything else a plugin."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone ({error.strerror}); cd to one") from None
    _app(ctx)
    ready()
