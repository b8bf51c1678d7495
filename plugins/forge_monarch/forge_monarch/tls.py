"""Who may give a worker orders: only a peer with a certificate of one authority (mutual TLS).

Monarch's own transport checks the certificates of both ends of every connection. What stands here
tells in words, before Monarch is started, why its handshakes would fail.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from forge_core import UsageError
from forge_monarch.addresses import handshake_problem, is_loopback, scheme_of, split
from forge_monarch.settings import TlsFiles

_VARIABLES = {
    "cert": "HYPERACTOR_TLS_CERT",
    "key": "HYPERACTOR_TLS_KEY",
    "ca": "HYPERACTOR_TLS_CA",
}


def check_protected(address: str, files: TlsFiles | None, *, where: str, give: str) -> None:
    """Refuse an address where anybody who reaches it could run code.

    Args:
        address: of a worker.
        files: the certificates; None if there are none.
        where: what the address is, at the head of the error.
        give: how to name the certificates, for the error.

    Raises:
        UsageError: it is no address, is not protected, or has certificates and does not use them.
    """
    host, port = split(address)
    if scheme_of(address) == "tls":
        if files is None:
            raise UsageError(
                f"{where}: {address} needs certificates; give {give} (docs/monarch.md)"
            )
    elif files is not None:
        raise UsageError(f"{where}: {address} does not use the certificates; write tls://")
    elif not is_loopback(host):
        raise UsageError(
            f"{where}: anyone who reaches {address} could run code there; use tls://{host}:{port} "
            f"with {give} (docs/monarch.md)"
        )


def use(files: TlsFiles) -> None:
    """Have Monarch use the certificates; before it is imported, or configured again."""
    for name, path in _resolved(files).items():
        os.environ[_VARIABLES[name]] = str(path.absolute())


def check_certificate(files: TlsFiles, host: str, *, where: str) -> None:
    """Make sure that peers will accept the certificate under a name, by a handshake with ourselves.

    Args:
        files: the certificates.
        host: name or number that peers reach this end by.
        where: what names the files, at the head of the error.

    Raises:
        UsageError: a file is missing or is not what it must be, or the certificate is not valid
            for the host.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(files, where=where).wrap_bio(to_client, to_server, server_hostname=host)
    server = _context(files, ssl.PROTOCOL_TLS_SERVER, where).wrap_bio(
        to_server, to_client, server_side=True
    )
    waiting: list[Callable[[], object]] = [client.do_handshake, server.do_handshake]
    try:
        for _ in range(8):  # a handshake is two or three turns
            waiting = [step for step in waiting if not _done(step)]
            if not waiting:
                return
    except ssl.SSLError as error:
        raise UsageError(f"{where}: {files.cert}: {handshake_problem(error)}") from error
    raise UsageError(f"{where}: {files.cert}: the handshake with itself does not end")


def client_context(files: TlsFiles, *, where: str = "runtime.tls") -> ssl.SSLContext:
    """For a connection to a worker.

    Raises:
        UsageError: a file is missing or is not what it must be.
    """
    return _context(files, ssl.PROTOCOL_TLS_CLIENT, where)


def _done(handshake: Callable[[], object]) -> bool:
    try:
        handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _context(files: TlsFiles, protocol: int, where: str) -> ssl.SSLContext:
    paths = _resolved(files)
    for name, path in paths.items():
        if not os.access(path, os.R_OK):
            raise UsageError(f"{where}: {name} {path}: no such file, or it cannot be read")
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(paths["cert"], paths["key"], password=_no_password)
        context.load_verify_locations(paths["ca"])
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{where}: {files.cert}, {files.key}: not a certificate and its key without a "
            f"password, in PEM ({getattr(error, 'reason', None) or error})"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")


def _resolved(files: TlsFiles) -> dict[str, Path]:
    ca = files.cert if files.ca is None else files.ca
    return {
        "cert": files.cert.expanduser(),
        "key": files.key.expanduser(),
        "ca": ca.expanduser(),
    }
