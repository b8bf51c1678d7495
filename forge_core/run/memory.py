"""What one rank of a trainer holds, in bytes, as trainers tell it to ``forge plan``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The fullest rank's memory, term by term; what the allocator and kernels need comes on top.

    Args:
        device: bytes where the model computes: ``parameters``, ``gradients``, ``optimizer``,
            ``activations``, and ``reference`` where a frozen copy is kept.
        host: bytes that were moved to host memory instead.
    """

    device: Mapping[str, int]
    host: Mapping[str, int] = field(default_factory=dict)
