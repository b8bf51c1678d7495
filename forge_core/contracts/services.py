"""What a service asks a runtime for, and how it treats its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from forge_core.contracts.context import BuildContext, Placement
from forge_core.contracts.selection import Selection

if TYPE_CHECKING:
    from forge_core.contracts.protocols import Loss

RoutingName = Literal["least_loaded", "round_robin", "sticky", "prefix"]


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How a service treats its replicas.

    Args:
        routing: which replica a call goes to; ``docs/services.md`` says how each chooses.
        concurrency: most calls in flight on a replica; more wait in order of arrival.
        retry: a call whose replica died is made again on another one, and dead replicas are
            started again. False for components whose state cannot be made again (trainers): a
            death fails the service.
        tries: most replicas a call is given to, in all.
        restarts: most restarts of a replica that answers no call between them. The first comes at
            once; the wait before each of the others is twice that of the one before.
        restart_delay: seconds before the second of them; None: so many that the last comes when
            ``outage_limit`` is nearly over. With the defaults the waits are 0, 1.2, 2.3, 4.7, 9.4,
            19, 38, 75, 150 and 300 s.
        deadline: seconds that a call may take on a replica; then that is taken for dead. None: any.
        outage_limit: seconds without a healthy replica after which the service fails. An engine
            with a large model takes minutes to start again, and so may a remote one that is
            restarted by others.
        stop_limit: seconds a replica may take to stop; its runtime kills what hangs before that.
    """

    routing: RoutingName = "least_loaded"
    concurrency: int = 1024
    retry: bool = True
    tries: int = 3
    restarts: int = 10
    restart_delay: float | None = None
    deadline: float | None = None
    outage_limit: float = 600.0
    stop_limit: float = 60.0

    def wait_before_restart(self, in_vain: int) -> float:
        """Seconds to wait before a restart.

        Args:
            in_vain: restarts of the replica since its last answer.
        """
        if in_vain == 0:
            return 0.0
        second = self.restart_delay
        if second is None:
            second = self.outage_limit / 2.0 ** (self.restarts - 1)
        return second * 2.0 ** (in_vain - 1)


@dataclass(frozen=True, kw_only=True)
class RecipeService:
    """A service that a recipe has beside the trainer and the generators of its stage.

    A recipe declares them by name in ``services(config)``, so that ``--dry-run``, ``forge plan``
    and the runtime know them before anything starts; ``await stage.service(NAME)`` is the handle.

    Args:
        section: whose component it is, with that section's settings and, if ``placement`` is
            None, its placement: ``trainer``, ``generator``, ``reference``, or an added one.
        selection: the component, in place of a section's.
        model: name of a model in ``models:``; empty: the one that the stage starts from.
        training: keys of the section ``training`` that differ from the stage's.
        loss: for trainers, the loss to train with (``config.loss`` for the stage's); None: it holds
            its weights as they are, without gradients or optimizer state.
        weights_from: for generators, the trainer whose published weights it samples from:
            ``trainer`` (the stage's) or a trainer among the recipe's services.
        placement: how many replicas, of how many processes; None: as the section's, else one.
        options: routing, limits, retries; None: as the section's, else the defaults.
        checkpoint: the component has ``save(folder)`` and ``load(folder)``, as trainers do: its
            state is in every checkpoint and comes back with ``--resume``. It has one replica.
    """

    section: str = ""
    selection: Selection[Any] | None = None
    model: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    loss: Selection[Loss] | None = None
    weights_from: str = ""
    placement: Placement | None = None
    options: ServiceOptions | None = None
    checkpoint: bool = False


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """One replica to start. Picklable, so that it travels.

    Args:
        name: of the service, such as ``generator``.
        index: of the replica in the service.
        placement: how many replicas the service has, of how many ranks, and what these are given.
        selection: the component and its settings.
        context: what the component is built with; ``ComponentHost.build`` puts the replica's index
            and the rank in.
    """

    name: str
    index: int
    placement: Placement
    selection: Selection[Any]
    context: BuildContext
