"""What a service asks a runtime for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_core.component import BuildContext, Placement, Selection


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """One replica to start. Picklable, so that it travels.

    Args:
        name: of the service, such as ``generator``.
        index: of the replica in the service.
        placement: how many replicas the service has, of how many ranks, and what these are given.
        selection: the component and its settings.
        context: what the component is built with; ``ComponentHost.build`` puts the replica's index
            and the rank in.
    """

    name: str
    index: int
    placement: Placement
    selection: Selection[Any]
    context: BuildContext
