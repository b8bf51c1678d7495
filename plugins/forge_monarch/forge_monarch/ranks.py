"""The ranks of a replica as the controller calls them: our own actors, or a component's."""

from __future__ import annotations

import pickle
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from monarch.actor import ActorError

from forge_core.processes.frames import dumps
from forge_core.runtimes.wire import unpack_error


class Ranks(Protocol):
    """All ranks of one replica. A call's result or exception is the component's own."""

    def call(
        self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Coroutine[Any, Any, Any]]:
        """The same call on each rank, one coroutine for each; ``number`` is the call's."""
        ...

    def cancel(self, number: int) -> None:
        """Give a call up: nobody waits for its result."""
        ...

    def close(self) -> list[Coroutine[Any, Any, Any]]:
        """Close the component on each rank."""
        ...


class ComponentRanks:
    """Ranks whose component was built by ``rank.Rank``."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    def call(
        self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Coroutine[Any, Any, Any]]:
        try:
            request = dumps((method, args, kwargs))
        except Exception as error:
            raise TypeError(
                f"{method}: its arguments cannot be sent to another process: {error}"
            ) from error
        return [answer(actor.run, number, request) for actor in self._actors]

    def cancel(self, number: int) -> None:
        for actor in self._actors:
            actor.forget.broadcast(number)

    def close(self) -> list[Coroutine[Any, Any, Any]]:
        return [answer(actor.close) for actor in self._actors]


class ActorRanks:
    """Ranks of a component that is a Monarch actor itself: its endpoints are called."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    def call(
        self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Coroutine[Any, Any, Any]]:
        return [_endpoint(actor, method, args, kwargs) for actor in self._actors]

    def cancel(self, number: int) -> None:
        """An endpoint runs to its end."""

    def close(self) -> list[Coroutine[Any, Any, Any]]:
        closable = [actor for actor in self._actors if hasattr(actor, "close")]
        return [_endpoint(actor, "close", (), {}) for actor in closable]


async def answer(endpoint: Any, *args: Any) -> Any:
    """Call an endpoint of ``rank.Rank``: its value, or the component's exception raised here."""
    failed, body = await endpoint.call_one(*args)
    if failed:
        raise unpack_error(body)
    return pickle.loads(body)


async def _endpoint(actor: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return await getattr(actor, method).call_one(*args, **kwargs)
    except ActorError as error:
        raise error.exception from error
