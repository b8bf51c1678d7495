"""The ``forge`` command. Each subcommand lives in its own module, imported when it is called."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from forge_core.errors import ForgeError

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("forge_core.cli.run:run", "Run a preset or a config file."),
    "plan": ("forge_core.cli.plan:plan", "Say what a config would take, before it starts."),
    "runs": ("forge_core.cli.runs:runs", "List the runs in a folder."),
    "generate": ("forge_core.cli.generate:generate", "Text from a model or a run."),
    "chat": ("forge_core.cli.chat:chat", "Talk with a model or a run."),
    "serve": ("forge_core.cli.serve:serve", "Serve a model or a run to OpenAI clients."),
    "worker": (
        "forge_core.cli.worker:worker",
        "Make this machine a host that runs elsewhere can use.",
    ),
    "model": ("forge_core.cli.model:model", "Make a model folder from what a plugin ships."),
    "presets": ("forge_core.cli.presets:presets", "List the configs that plugins ship."),
    "config": ("forge_core.cli.config:config", "Show, explain and compare configs."),
    "plugins": ("forge_core.cli.plugins:plugins", "List plugins and the components they bring."),
    "doctor": ("forge_core.cli.doctor:doctor", "Say what is installed and what is wrong with it."),
}
"""Command -> (module:attribute, one-line help). The help stands here, so it costs no import."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "-p",
    "disabled",
    multiple=True,
    metavar="no:NAME",
    help="Leave a plugin out. Also FORGE_DISABLE_PLUGINS=a,b and FORGE_PLUGIN_AUTOLOAD=0.",
)
@click.version_option(package_name="forge-rl-core", prog_name="forge")
@click.pass_context
def forge(ctx: click.Context, debug: bool, disabled: tuple[str, ...]) -> None:
    """Post-training for language models: a small kernel, everything else a plugin."""
    from forge_core.app import Forge

    for item in disabled:
        if not item.startswith("no:") or len(item) == 3:
            raise click.UsageError(f"-p takes no:NAME, not {item!r}")
    if ctx.obj is None:
        ctx.obj = Forge(disabled=[item[3:] for item in disabled])


def main(arguments: Sequence[str] | None = None, *, app: object | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: without the program's name; default ``sys.argv[1:]``.
        app: the ``Forge`` to use instead of a fresh one that discovers plugins.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        result = forge.main(arguments, prog_name="forge", standalone_mode=False, obj=app)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Abort:
        return 130
    except ForgeError as error:
        if debug:
            traceback.print_exc()
        for line in str(error).splitlines() or [type(error).__name__]:
            click.echo(f"error: {line}", err=True)
        for line in error.log_tail:
            click.echo(f"  | {line}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        click.echo("error: interrupted", err=True)
        return 130
    except Exception as error:  # a bug, ours or a plugin's: one line, and the way to all of it
        if debug:
            traceback.print_exc()
        message = str(error).partition("\n")[0]
        click.echo(f"error: {type(error).__name__}: {message} (--debug shows where)", err=True)
        return 1
    return result if isinstance(result, int) else 0


def entry_point() -> NoReturn:
    """What the installed ``forge`` script calls: ``main``, then the end of the process.

    The interpreter's own end would let engines' native threads run into it while it is taken down,
    which ends some runs with an abort (exit code 134) after they have succeeded. So everything that
    may run at exit does, and then the process ends with the code it has earned.
    """
    code = main()
    threading._shutdown()  # type: ignore[attr-defined]  # joins what is no daemon
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
