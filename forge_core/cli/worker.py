"""``forge worker``: makes this machine a host that runs elsewhere can use."""

from __future__ import annotations

import click

from forge_core.command import INSTALL_ENGINES
from forge_core.errors import PluginError


@click.command()
@click.argument("address", metavar="tcp://HOST:PORT")
def worker(address: str) -> None:
    """Serve runs that name this machine under runtime.hosts, until it is ended.

    HOST is what the machine is reached by from where `forge run` runs. Whoever reaches the port can
    run code here: only inside a network that you trust.
    """
    try:
        from forge_monarch.worker import serve
    except ImportError as error:
        raise PluginError(
            "forge worker needs the runtime 'monarch'; in a clone of Forge's repository: "
            f"{INSTALL_ENGINES}"
        ) from error
    serve(address)
