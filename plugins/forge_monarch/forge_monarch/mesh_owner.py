"""The actor that owns a runtime's meshes.

Monarch tells the *owner* of a mesh when it fails. Where the client itself owns it, a failure that
is not handled ends the client. So an actor in the controller's process owns every replica, and
passes what it receives to the runtime.
"""
# Monarch is untyped to mypy.
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import Actor, MeshFailure, concurrent_endpoint

from forge_monarch.bootstrap import MODULE

FailureSink = Callable[[str, str], None]
"""Called with a failure: name of the mesh, report. Called in the thread of Monarch's event loop."""

_sinks: dict[str, FailureSink] = {}
"""By owner; an actor's arguments are pickled, and a sink cannot be."""


def listen(owner: str, sink: FailureSink) -> None:
    """Pass an owner's failures to ``sink``, until ``unlisten``."""
    _sinks[owner] = sink


def unlisten(owner: str) -> None:
    _sinks.pop(owner, None)


class Owner(Actor):
    """Spawns meshes of processes and of actors on them, as their owner.

    Args:
        name: under which its listener is known.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._procs: dict[str, Any] = {}

    @concurrent_endpoint
    async def start_procs(
        self, key: str, hosts: Any, per_host: int, name: str, pythons: Sequence[str] = ()
    ) -> None:
        """Start processes.

        Args:
            key: what they go by here.
            hosts: mesh of the hosts to start them on.
            per_host: how many on each.
            name: part of their names.
            pythons: Python's executable on each host, to start ``bootstrap`` with; none: Monarch's
                own start.
        """

        def command(place: Any) -> BootstrapCommand:
            return BootstrapCommand(pythons[place.rank // per_host], None, ["-m", MODULE], {})

        procs = hosts.spawn_procs(
            per_host={"procs": per_host}, name=name, bootstrap_command=command if pythons else None
        )
        self._procs[key] = procs
        await procs.initialized

    @concurrent_endpoint
    async def start_actors(
        self, key: str, actor: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, str]:
        """Spawn an actor in each of the processes. Returns their mesh and its name."""
        mesh = self._procs[key].spawn(actor.__name__.lower(), actor, *args, **kwargs)
        await mesh.initialized
        return mesh, await mesh._name

    @concurrent_endpoint
    async def halt(self, key: str) -> None:
        """End the processes."""
        procs = self._procs.pop(key, None)
        if procs is not None:
            await procs.stop()

    async def __supervise__(self, failure: MeshFailure) -> bool:
        sink = _sinks.get(self._name)
        if sink is not None:
            sink(failure.mesh_name, failure.report())
        return True
