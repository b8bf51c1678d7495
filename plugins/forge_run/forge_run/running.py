"""The services of a stage that were started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_services.service import Service

if TYPE_CHECKING:
    from forge_core import BuildContext, Placement, Runtime, Selection, ServiceOptions
    from forge_run.session import RunSession


class Running(dict[str, Service]):
    """By name, in the order in which they were started.

    Args:
        session: whose runtime, watchdog and event bus they have.
    """

    def __init__(self, session: RunSession) -> None:
        super().__init__()
        self._session = session

    async def start(
        self,
        name: str,
        selection: Selection[Any],
        context: BuildContext,
        placement: Placement,
        options: ServiceOptions | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> Service:
        """Start one and wait until its replicas are built.

        Args:
            name: of the service.
            selection: its component.
            context: what it is built with.
            placement: where its replicas go.
            options: how they are treated.
            runtime: where they live, if not on the run's.
        """
        service = self[name] = await Service.start(
            runtime or self._session.runtime,
            selection,
            context,
            name=name,
            placement=placement,
            options=options,
            watchdog=self._session.watchdog,
            on_event=self._session.events.event,
        )
        return service

    def laps(self) -> dict[str, float]:
        """What the services whose time is recorded did since the last call."""
        untimed = ("trainer", "replay_buffer")  # steps time the first; the other does no work
        timed = [service for name, service in self.items() if name not in untimed]
        return {
            f"{service.name}_{name}": value
            for service in timed
            for name, value in service.interval_metrics().items()
        }
