"""Runtime ``local``: replicas are objects in this process, called on its event loop, or processes
of their own on this host where the config asks for that.

With objects a debugger steps through a whole run: no process, no thread and no task comes between
a recipe and a component. Only what starts a process itself is built in a thread: an engine takes
long, and the other replicas go on meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from forge_core import ReplicaDied, ReplicaSpec
from forge_local.component_host import ComponentHost
from forge_local.devices import (
    DeviceTable,
    check_devices,
    devices_wanted,
    visible_devices,
)
from forge_local.process_replica import ProcessReplica


class LocalReplica:
    """A component in this process. It dies when one of its methods raises ``ReplicaDied``."""

    def __init__(self, host: ComponentHost) -> None:
        self._host = host
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stopped = False

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method.

        Raises:
            ReplicaDied: it is dead, or has just died.
            AttributeError: the component has no such method.
        """
        if self._death.done():
            raise ReplicaDied(self._death.result())
        if self._stopped:
            raise ReplicaDied("stopped")
        try:
            return await self._host.call(method, args, kwargs)
        except ReplicaDied as death:
            if not self._death.done():
                self._death.set_result(str(death))
            raise

    async def wait_dead(self) -> str:
        """Return the cause once it is dead."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """Close the component, once, dead or alive."""
        self._stopped = True
        await self._host.close()


class LocalRuntime:
    """Builds components in this process, or in processes of their own where the placement says so:
    ``procs`` above 1, ``isolate``, ``with_gpus`` or ``env``."""

    def __init__(self) -> None:
        self._replicas: list[LocalReplica | ProcessReplica] = []
        self._devices = DeviceTable(visible_devices())

    async def spawn(self, spec: ReplicaSpec) -> LocalReplica | ProcessReplica:
        """Build the component.

        Raises:
            UsageError: more devices are asked for than there are, or the component cannot be sent
                to another process.
        """
        services = spec.context.services
        if spec.name in services:  # else the stage has its services in another runtime
            check_devices("this host", devices_wanted(services), len(self._devices))
        replica: LocalReplica | ProcessReplica
        if spec.placement.own_processes:
            replica = await ProcessReplica.start(spec, self._devices.assign(spec))
        else:
            replica = LocalReplica(await _built(spec))
        self._replicas.append(replica)
        return replica

    async def close(self) -> None:
        """Close what no service has closed."""
        while self._replicas:
            await self._replicas.pop().stop()


async def _built(spec: ReplicaSpec) -> ComponentHost:
    if not spec.selection.location.own_process:
        return ComponentHost.build(spec)
    building = asyncio.ensure_future(asyncio.to_thread(ComponentHost.build, spec))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        with suppress(Exception):  # a thread cannot be stopped; what it has started is ended
            await (await building).close()
        raise
