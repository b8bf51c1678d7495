"""``service.<method>``: call it with ``.route()`` (one replica) or ``.fanout()`` (all of them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from forge_services.service import Service


class Method:
    """A method of the component: ``.route()`` or ``.fanout()`` says which replica is called."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on one replica: the session's inside a session, else as ``routing`` says.

        Raises:
            RunFailed: no replica can answer, now or within the outage limit.
            ReplicaDied: the session's replica is gone.
            Exception: whatever the method raised; the replica lives on.
        """
        return await self._service._route(self._name, args, kwargs)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call it on all healthy replicas at once; results in the order of replicas.

        Does not queue behind routed calls, and is not retried.

        Raises:
            FanoutError: it failed on some; names each with its cause.
        """
        return await self._service._fanout(self._name, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(self._help())

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._help()}; there is no .{name}")

    def _help(self) -> str:
        call = f"{self._service.name}.{self._name}"
        return (
            f"say which replica: {call}.route(...) for one, {call}.fanout(...) for all, or "
            f"{call}.route(...) inside 'async with {self._service.name}.session()' for the same one"
        )
