"""A host's end: waits for controllers, and starts the processes that they ask for."""

from __future__ import annotations

import asyncio
import os
import signal
from importlib.metadata import version
from pathlib import Path

from forge_core import PluginError, RunFailed, UsageError
from forge_monarch.addresses import check_can_listen, split
from forge_monarch.monarch_api import load
from forge_monarch.settings import TESTED, TlsFiles
from forge_monarch.tls import check_certificate, check_protected

LOOK_EVERY = 15.0
"""Seconds between two looks for processes whose controller is silent, until one says otherwise."""


def serve(
    address: str, cert: Path | None = None, key: Path | None = None, ca: Path | None = None
) -> None:
    """Serve controllers, several at a time, until ctrl-C or SIGTERM.

    Args:
        address: such as ``tls://10.0.0.2:26600``; the name or number that controllers reach this
            host by, not ``0.0.0.0``. ``tcp://`` only on a loopback address.
        cert: of this host, in PEM.
        key: its private key.
        ca: that signs the certificates of controllers; default: ``cert``, which all share.

    Raises:
        UsageError: that is no address, none of this host, its port is in use, or anyone who reaches
            it could run code.
        PluginError: Monarch cannot be imported, or is another than is needed.
        RunFailed: Monarch has stopped to serve.
    """
    if (cert is None) != (key is None) or (ca is not None and cert is None):
        raise UsageError("forge worker: give --cert and --key together, and --ca only with them")
    files = TlsFiles(cert=cert, key=key, ca=ca) if cert is not None and key is not None else None
    check_protected(address, files, where="forge worker", give="--cert and --key")
    if files is not None:
        check_certificate(files, split(address)[0], where="forge worker")
    check_can_listen(address)
    _serve(address, files)


def _serve(address: str, files: TlsFiles | None = None) -> None:
    load(hang_after=LOOK_EVERY, tls=files)
    from forge_monarch.hosts import end_orphans

    end_orphans(LOOK_EVERY)
    asyncio.run(_until_ended(address))


async def _until_ended(address: str) -> None:
    try:
        from monarch.actor import start_worker_loop_forever
    except ImportError as error:
        raise PluginError(
            f"torchmonarch {version('torchmonarch')} does not fit: {error}; "
            f"pip install torchmonarch=={TESTED}"
        ) from error

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        serving = asyncio.ensure_future(
            _lifetime(start_worker_loop_forever(address=address, ca="trust_all_connections"))
        )
    except Exception as error:
        raise RunFailed(f"{address}: Monarch cannot serve there: {error}") from error
    print(f"worker at {address}: waits for runs; ctrl-C ends it and what it runs", flush=True)
    waiting = asyncio.ensure_future(ended.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        raise RunFailed(f"{address}: Monarch has stopped to serve: {serving.exception()}")
    print(f"worker at {address}: ended", flush=True)


async def _lifetime(server: object) -> None:
    """Monarch's futures can be awaited, but are no coroutines."""
    await server  # type: ignore[misc]


def main() -> None:
    """Serve as a controller's child: ``python -m forge_monarch.host_worker``, given an address."""
    from forge_local.processes.supervision import become_child

    _, (address,) = become_child()
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), 1
    )  # what it says of itself is for people who start it
    _serve(address)


if __name__ == "__main__":
    main()
