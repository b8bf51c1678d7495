"""A host's end: waits for controllers, and starts the processes that they ask for."""

from __future__ import annotations

import re
import sys

from forge_core import UsageError
from forge_monarch.engine import load

_ADDRESS = re.compile(r"(tcp://[^/:]+:\d+|ipc://.+)")


def serve(address: str) -> None:
    """Serve controllers, one after the other, until the process is ended.

    Args:
        address: such as ``tcp://10.0.0.2:26600``; the name or number that controllers reach this
            host by, not ``0.0.0.0``.

    Raises:
        UsageError: that is no address.
        PluginError: Monarch cannot be imported.
    """
    if not _ADDRESS.fullmatch(address) or address.startswith("tcp://0.0.0.0"):
        raise UsageError(
            f"{address}: no address; give tcp://HOST:PORT with the name or number that the "
            "controller reaches this host by"
        )
    load(hang_after=15.0)
    from monarch.actor import run_worker_loop_forever

    run_worker_loop_forever(address=address, ca="trust_all_connections")


def main() -> None:
    """Serve as a child of a controller: ``python -m forge_monarch.worker LIFELINE ADDRESS``."""
    from forge_core.processes.supervision import divide

    divide(int(sys.argv[1]), ())
    serve(sys.argv[2])


if __name__ == "__main__":
    main()
