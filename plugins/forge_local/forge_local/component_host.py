"""A component where it lives, whatever the runtime: built for its rank, called by name, closed."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Self

from forge_core import ReplicaSpec, UsageError
from forge_core.contracts.blame import contained, described, title
from forge_core.manifest import verify_model
from forge_local.processes.frames import dumps

LOADS_WEIGHTS = frozenset({"generator", "trainer"})
"""Families whose components load the model's folder when they are built."""


class ComponentHost:
    """Holds one rank's component.

    Args:
        component: the object whose methods are called.
        label: what it is called in errors, such as ``generator torch``.
    """

    def __init__(self, component: Any, label: str) -> None:
        self.component = component
        self._label = label
        self._closed = False

    @classmethod
    def build(cls, spec: ReplicaSpec, rank: int = 0) -> Self:
        """Build the component of one rank. The caller has set torch.distributed's environment
        variables (``rank_environment``) and runs an event loop.

        Raises:
            DataError: a file of the model that it would load is damaged.
        """
        procs = spec.placement.procs
        context = replace(spec.context, replica=spec.index, rank=rank, world_size=procs)
        label = f"{spec.selection.family} {spec.selection.name}"
        if rank == 0 and spec.selection.family in LOADS_WEIGHTS and context.model.path is not None:
            verify_model(context.model.path)  # the other ranks read the same files
        return cls(spec.selection.build(context), label)

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method, sync or async. A sync one runs inline.

        Raises:
            AttributeError: the component has no such method.
            Escaped: it raised ``SystemExit`` or the like.
        """
        function = getattr(self.component, method, None)
        if function is None:
            raise AttributeError(f"{self._label} has no method {method!r}")
        with contained():
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

    async def close(self) -> None:
        """Close the component, once."""
        if self._closed:
            return
        self._closed = True
        close = getattr(self.component, "close", None)
        if close is not None:
            with contained():
                result = close()
                if inspect.isawaitable(result):
                    await result


def rank_environment(spec: ReplicaSpec, rank: int, address: str, port: int) -> dict[str, str]:
    """The environment of a rank whose replica lives on one host: torch.distributed's variables
    (``env://``), and what the config says.

    Args:
        spec: of the replica.
        rank: in the replica.
        address: where rank 0 listens.
        port: where rank 0 listens.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(spec.placement.procs),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(spec.placement.procs),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        **spec.placement.env,
    }


def pickled(spec: ReplicaSpec, value: object) -> bytes:
    """What a process of a replica is given, with its component.

    Args:
        spec: of the replica.
        value: what is sent; the spec is in it.

    Raises:
        UsageError: the component cannot be pickled; names it and its plugin.
    """
    try:
        return dumps(value)
    except Exception as error:
        raise UsageError(
            f"{spec.name}: {title(spec.selection)} cannot be sent to a process of its own: "
            f"{described(error)}; its settings and what its build function refers to must be "
            "picklable"
        ) from error
