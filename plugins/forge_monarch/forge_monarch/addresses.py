"""Addresses of workers, as written in a config and on the command line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import re
import socket
import ssl

from forge_core import UsageError

_ADDRESS = re.compile(r"(tcp|tls)://([^/:@]+):(\d+)")

REFUSAL_LIMIT = 0.5
"""Seconds in which a worker that does not accept our certificate says so."""

RETRY_EVERY = 0.5
"""Seconds between two tries to reach a worker that may be just starting."""


def split(address: str) -> tuple[str, int]:
    """Host and port of ``tls://HOST:PORT`` or ``tcp://HOST:PORT``.

    Raises:
        UsageError: it is none.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None or parts[2] == "0.0.0.0" or not 0 < int(parts[3]) < 1 << 16:
        raise UsageError(
            f"{address}: no address; give tls://HOST:PORT with the name or number that the "
            "controller reaches the host by"
        )
    return parts[2], int(parts[3])


def scheme_of(address: str) -> str:
    """``tls``, ``tcp`` or what else an address begins with."""
    return address.partition("://")[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a name or number; other names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


async def knock(address: str, limit: float, tls: ssl.SSLContext | None = None) -> str:
    """Wait until something listens there: why not after ``limit`` seconds, or "".

    Args:
        address: of a worker.
        limit: seconds.
        tls: to shake hands with, where the address is one of TLS; what is wrong with the
            certificates is found at once.

    Raises:
        UsageError: no host is known by that name.
    """
    host, port = split(address)
    clock = asyncio.get_running_loop().time
    deadline = clock() + limit
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls)
                try:
                    if tls is not None:
                        await _accepted(reader)
                finally:
                    writer.close()
            return ""
        except ssl.SSLError as error:
            return handshake_problem(error)
        except socket.gaierror as error:
            raise UsageError(f"{address}: no host is known by the name {host!r}") from error
        except TimeoutError:
            return "it does not answer"
        except OSError as error:
            if clock() + RETRY_EVERY > deadline:
                return reason(error)
        await asyncio.sleep(RETRY_EVERY)


async def _accepted(reader: asyncio.StreamReader) -> None:
    """The other end refuses our certificate after the handshake has ended for us."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFUSAL_LIMIT):
            if not await reader.read(1):
                raise ConnectionResetError(errno.ECONNRESET, "closed")


def handshake_problem(error: ssl.SSLError) -> str:
    """What is wrong with a TLS handshake, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS"
    return f"TLS handshake: {(error.reason or str(error)).lower().replace('_', ' ')}"


def reason(error: OSError) -> str:
    """An error of the network in words, such as ``connection refused``."""
    if isinstance(error, socket.gaierror):
        return "no host is known by that name"
    return os.strerror(error.errno).lower() if error.errno else str(error)
