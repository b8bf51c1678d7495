"""How a service treats its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RoutingName = Literal["least_loaded", "round_robin", "sticky", "prefix"]


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How a service treats its replicas.

    Args:
        routing: which replica a call goes to; see ``forge_core.services.routing``.
        concurrency: most calls in flight on a replica; more wait in order of arrival.
        retry: a call whose replica died is made again on another one, and dead replicas are
            started again. False for components whose state cannot be made again (trainers): a
            death fails the service.
        tries: most replicas a call is given to, in all.
        restarts: most restarts of a replica that answers no call between them.
        restart_delay: seconds before the second restart attempt in a row; doubles with each.
        outage_limit: seconds without a healthy replica after which the service fails. An engine
            with a large model takes minutes to start again.
        stop_limit: seconds a replica may take to stop; its runtime kills what hangs before that.
    """

    routing: RoutingName = "least_loaded"
    concurrency: int = 1024
    retry: bool = True
    tries: int = 3
    restarts: int = 3
    restart_delay: float = 0.1
    outage_limit: float = 600.0
    stop_limit: float = 60.0
