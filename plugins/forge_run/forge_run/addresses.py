"""Where programs outside a run reach its generators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forge_run import durable

if TYPE_CHECKING:
    from pathlib import Path

    from forge_services.replica import LiveReplica
    from forge_services.service import Service
    from forge_services.watchdog import EventSink


class Addresses:
    """Has the replicas of a generator open the addresses that its settings ask for, and tells of
    each: as the event ``address``, and in a file while they are open.

    Args:
        file: JSON object, replica -> ``base_url`` for clients.
        on_event: called with each.
    """

    def __init__(self, file: Path, on_event: EventSink) -> None:
        self._file = file
        self._on_event = on_event
        self._open: dict[int, str] = {}

    async def open(self, generator: Service) -> None:
        """Open them all, and that of a replica that restarts when it is back.

        Raises:
            ConfigError: an address is not available.
        """
        for outcome in await generator.outcomes("serve"):
            if outcome.error is not None:
                raise outcome.error
            self._tell(outcome.replica, outcome.value)
        generator.on_restart("address", self._reopen)

    def close(self) -> None:
        """The replicas are gone."""
        self._open.clear()
        self._file.unlink(missing_ok=True)

    async def _reopen(self, live: LiveReplica) -> None:
        self._tell(live.index, await live.call("serve"))

    def _tell(self, replica: int, address: str | None) -> None:
        if address is None:
            return
        self._open[replica] = address
        durable.write_text(self._file, json.dumps(self._open, indent=1))
        self._on_event(
            "address",
            f"generator replica {replica} answers OpenAI clients at {address}",
            {"replica": replica, "address": address},
        )
