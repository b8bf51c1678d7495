"""What a service counts and says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """State of a replica, and of the service as a whole."""

    UNINITIALIZED = "uninitialized"
    HEALTHY = "healthy"
    RECOVERING = "recovering"
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica.

    Args:
        index: in the service.
        health: its state; only a healthy one takes requests.
        in_flight: calls it is working on.
        restarts: how often it was started again.
        cause: why it last died, empty if it never did.
    """

    index: int
    health: Health
    in_flight: int
    restarts: int
    cause: str


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service and its replicas. Healthy when at least one replica is."""

    name: str
    health: Health
    replicas: tuple[ReplicaStatus, ...]


@dataclass(slots=True)
class Counters:
    """Totals since the start; times in seconds."""

    requests: int = 0
    errors: int = 0
    retries: int = 0
    restarts: int = 0
    queue_wait: float = 0.0
    latency: float = 0.0
    finished: int = 0
    dispatched: int = 0
