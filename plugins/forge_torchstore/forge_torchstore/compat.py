"""TorchStore 0.1 on Monarch 0.2 and later.

Monarch refuses an actor class that mixes ``def`` and ``async def`` endpoints, when the actor is
spawned and whenever a handle on it is pickled or unpickled, so in every process. TorchStore 0.1.2's
``Controller`` mixes them. Declaring the sync ones async is enough; TorchStore's own later versions
do the same.

Monarch pickles actor classes by reference. ``Controller`` here is a subclass, so that what
unpickles a handle on it imports this module, which patches the endpoints in that process too.

Nothing is changed where a class is all of one kind.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import torchstore.api
import torchstore.controller
import torchstore.storage_volume


def unmix_endpoints(actor: type) -> list[str]:
    """Make every endpoint of a Monarch actor class async if it has endpoints of both kinds.

    Returns the names of those that were changed.
    """
    endpoints = {
        name: member
        for name in dir(actor)
        if hasattr(member := inspect.getattr_static(actor, name), "_method")
    }
    sync = [
        name
        for name, member in endpoints.items()
        if not inspect.iscoroutinefunction(member._method)
    ]
    if len(sync) == len(endpoints):
        return []
    for name in sync:
        endpoints[name]._method = _as_async(endpoints[name]._method)
    return sync


def _as_async(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def endpoint(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return endpoint


PATCHED = {
    actor.__name__: unmix_endpoints(actor)
    for actor in (torchstore.controller.Controller, torchstore.storage_volume.StorageVolume)
}
"""Actor class -> endpoints that were made async; empty lists where nothing was needed."""

if PATCHED["Controller"]:

    class Controller(torchstore.controller.Controller):  # type: ignore[misc]
        """TorchStore's own, under a name that leads to this module."""

    torchstore.api.Controller = Controller
