"""Services: replicas of one component behind one handle (``service.Service``)."""

from forge_services.metrics import Health, ReplicaStatus, ServiceStatus
from forge_services.service import Service
from forge_services.weight_update import update_weights

__all__ = [
    "Health",
    "ReplicaStatus",
    "Service",
    "ServiceStatus",
    "update_weights",
]
