"""Addresses of workers, as they stand in a config and on the command line."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket

from forge_core import UsageError

_TCP = re.compile(r"tcp://([^/:]+):(\d+)")

RETRY_EVERY = 0.5
"""Seconds between two tries to reach a worker that may be just starting."""


def split(address: str) -> tuple[str, int]:
    """Host and port of ``tcp://HOST:PORT``.

    Raises:
        UsageError: it is none.
    """
    parts = _TCP.fullmatch(address)
    if parts is None or parts[1] == "0.0.0.0" or not 0 < int(parts[2]) < 1 << 16:
        raise UsageError(
            f"{address}: no address; give tcp://HOST:PORT with the name or number that the "
            "controller reaches the host by"
        )
    return parts[1], int(parts[2])


def check_can_listen(address: str) -> None:
    """Raise ``UsageError`` unless this host has the address and its port is free."""
    host, port = split(address)
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
    except socket.gaierror as error:
        raise UsageError(f"{address}: no host is known by the name {host!r}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{address}: port {port} is in use; end what listens there or take another"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"{address}: {host} is no address of this host; give one that others reach it by"
            ) from error
        raise UsageError(f"{address}: {reason(error)}") from error


def own_address(towards: str) -> str:
    """The address of this host that a worker's host sees it by.

    Raises:
        UsageError: there is no way to it, or no such host.
    """
    host, port = split(towards)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel says which of our addresses it would send from.
            probe.connect((host, port))
        except OSError as error:
            raise UsageError(f"no way to {towards}: {reason(error)}") from error
        ours: str = probe.getsockname()[0]
        return ours


async def knock(address: str, limit: float) -> str:
    """Wait until something listens there: why not after ``limit`` seconds, or "".

    Raises:
        UsageError: no host is known by that name.
    """
    host, port = split(address)
    clock = asyncio.get_running_loop().time
    deadline = clock() + limit
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return ""
        except socket.gaierror as error:
            raise UsageError(f"{address}: no host is known by the name {host!r}") from error
        except TimeoutError:
            return "it does not answer"
        except OSError as error:
            if clock() + RETRY_EVERY > deadline:
                return reason(error)
        await asyncio.sleep(RETRY_EVERY)


def reason(error: OSError) -> str:
    """An error of the network in words, such as ``connection refused``."""
    if isinstance(error, socket.gaierror):
        return "no host is known by that name"
    return os.strerror(error.errno).lower() if error.errno else str(error)
