"""What a service asks a runtime for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_core.component import BuildContext, Selection


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """One replica to start. Picklable, so that it travels.

    Args:
        name: of the service, such as ``generator``.
        index: of the replica in the service; the runtime puts it into the context.
        procs: processes the replica consists of.
        selection: the component and its settings.
        context: what the component is built with.
    """

    name: str
    index: int
    procs: int
    selection: Selection[Any]
    context: BuildContext
