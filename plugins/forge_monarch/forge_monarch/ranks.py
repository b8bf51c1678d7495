"""The ranks of a replica as the controller calls them: our own actors, or a component's."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from monarch.actor import ActorError

from forge_local.processes.frames import dumps
from forge_local.wire import unpack_error


class Ranks(Protocol):
    """All ranks of one replica. A call's result or exception is the component's own."""

    def call(
        self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Coroutine[Any, Any, Any]]:
        """The same call on each rank, one coroutine for each; ``number`` is the call's."""
        ...

    def cancel(self, number: int) -> None:
        """Give a call up: its result is no longer wanted."""
        ...

    def close(self) -> list[Coroutine[Any, Any, Any]]:
        """Close the component on each rank."""
        ...


class ComponentRanks:
    """Ranks whose component was built by ``rank.Rank``.

    Calls made in one go of the event loop are begun in one go by the ranks: what a generator
    batches depends on what it was asked, not on when messages arrive.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors
        self._batches = itertools.count()
        self._queue: list[tuple[asyncio.Future[list[Any]], int, bytes]] = []

    def call(
        self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Coroutine[Any, Any, Any]]:
        try:
            request = dumps((method, args, kwargs))
        except Exception as error:
            raise TypeError(
                f"{method}: its arguments cannot be sent to another process: {error}"
            ) from error
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[list[Any]] = loop.create_future()
        if not self._queue:
            loop.call_soon(self._send)
        self._queue.append((sent, number, request))
        return [_answer(sent, rank) for rank in range(len(self._actors))]

    def cancel(self, number: int) -> None:
        for actor in self._actors:
            actor.forget.broadcast(number)

    def close(self) -> list[Coroutine[Any, Any, Any]]:
        return [answer(actor.close) for actor in self._actors]

    def _send(self) -> None:
        queue = [entry for entry in self._queue if not entry[0].done()]
        self._queue.clear()
        batch = next(self._batches)
        for sent, number, request in queue:
            message = (number, batch, len(queue), request)
            sent.set_result([actor.run.call_one(*message) for actor in self._actors])


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
    return _open(await endpoint.call_one(*args))


async def _answer(sent: asyncio.Future[list[Any]], rank: int) -> Any:
    answers = await sent
    return _open(await answers[rank])


def _open(message: tuple[bool, bytes]) -> Any:
    failed, body = message
    if failed:
        raise unpack_error(body)
    return pickle.loads(body)


async def _endpoint(actor: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return await getattr(actor, method).call_one(*args, **kwargs)
    except ActorError as error:
        raise error.exception from error
