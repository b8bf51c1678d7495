"""``forge serve``: an OpenAI-compatible address of a model or a run's checkpoint."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from forge_chat.commands.options import find
from forge_core import GeneratorComponent, UsageError
from forge_core.command import INSTALL_ENGINES

if TYPE_CHECKING:
    from forge_core import Forge
    from forge_run.policy_source import PolicySource


@click.command()
@click.argument("model", metavar="MODEL-or-RUN")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE ...]")
@click.option("--step", type=int, help="Of a run: that step's checkpoint.")
@click.option("--generator", metavar="NAME", help="Short for generator.use=NAME.")
@click.option("--host", help="Short for generator.serve.host=HOST; default: this machine alone.")
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--api-key-file", metavar="FILE", help="Clients have to show a key in it, one on each line."
)
@click.option("--api-key-env", metavar="NAME", help="The same from an environment variable.")
@click.option("--api-key", is_flag=False, flag_value="", hidden=True)
@click.pass_obj
def serve(
    app: Forge,
    /,
    model: str,
    words: tuple[str, ...],
    step: int | None,
    generator: str | None,
    host: str | None,
    port: int,
    api_key_file: str | None,
    api_key_env: str | None,
    api_key: str | None,
) -> int:
    """Serve a model folder, a run (its newest checkpoint) or one checkpoint to OpenAI clients.

    \b
    forge serve models/Qwen3-0.6B --port 0
    forge serve runs/my-20260101-120000 --api-key-file key.txt

    Until ctrl-C. One replica of the generator is used. A run that trains serves its policy with
    generator.serve.port=8000 in its own config.
    """
    if api_key is not None:
        raise UsageError(
            "--api-key: a key on a command line is seen by every user of this machine; use "
            "--api-key-file FILE or --api-key-env NAME"
        )
    given = {
        "generator.use": _generator(app, generator, words),
        "generator.serve.host": host,
        "generator.serve.port": port,
        "generator.serve.api_key_file": api_key_file,
        "generator.serve.api_key_env": api_key_env,
    }
    flags = [f"{key}={value}" for key, value in given.items() if value is not None]
    asyncio.run(_serve(find(app, model, [*flags, *words], step=step)))
    return 0


def _generator(app: Forge, wanted: str | None, words: tuple[str, ...]) -> str | None:
    """Name of a generator that can serve; None if KEY=VALUE says it."""
    catalog = app.plugins.catalog
    servers = [name for name in catalog.names("generator") if _serves(app, name)]
    named = wanted or next((word[14:] for word in words if word.startswith("generator.use=")), None)
    if not servers:
        raise UsageError(
            "no generator that serves is installed; in a clone of Forge's repository: "
            f"{INSTALL_ENGINES}"
        )
    if named is not None and _serves(app, named):
        return wanted
    if named is not None or len(servers) > 1:
        raise UsageError(f"--generator: forge serve needs one of {', '.join(servers)}")
    return servers[0]


def _serves(app: Forge, name: str) -> bool:
    component = app.plugins.catalog.get("generator", name)
    return isinstance(component, GeneratorComponent) and component.serves


async def _serve(source: PolicySource) -> None:
    from forge_chat.completion import in_process
    from forge_core import ServingGenerator

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    click.secho(f"{source.model} on generator {source.generator.name}", dim=True, err=True)
    generator = in_process(source)
    try:
        assert isinstance(generator, ServingGenerator)  # what its component says
        click.echo(await generator.serve())
        click.secho("ctrl-C ends it.", dim=True, err=True)
        await stop.wait()
    finally:
        await generator.close()
