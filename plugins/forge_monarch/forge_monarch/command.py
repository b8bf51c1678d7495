"""``forge worker``: makes this machine a host that runs elsewhere can use."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("address", metavar="tls://HOST:PORT")
@click.option("--cert", type=click.Path(path_type=Path), help="This machine's certificate, PEM.")
@click.option("--key", type=click.Path(path_type=Path), help="Its private key.")
@click.option("--ca", type=click.Path(path_type=Path), help="Signs all of them; default: --cert.")
def worker(address: str, cert: Path | None, key: Path | None, ca: Path | None) -> None:
    """Serve runs that name this machine under runtime.hosts, until it is ended.

    HOST is what the machine is reached by from where `forge run` runs. A run sends code, so only
    controllers with a certificate that --ca has signed are served. tcp://127.0.0.1:PORT needs none:
    every user of this machine reaches it.
    """
    from forge_monarch.host_worker import serve

    serve(address, cert, key, ca)
