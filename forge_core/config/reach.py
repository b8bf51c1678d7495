"""Which transport reaches from a stage's trainer to its generator: the one place that decides it.

Used twice: for the default transport, on sections that are not parsed yet (``layout.py``), and by
the runner before a start, on the stage as it will run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

from forge_core.contracts.families import (
    REACHES,
    Location,
    Reach,
    TransportComponent,
)

if TYPE_CHECKING:
    from forge_core.contracts.context import Placement
    from forge_core.plugins.catalog import Catalog


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a transport.

    Args:
        section: ``trainer`` or ``generator``.
        location: where the component has its weights.
        placement: where its replicas go.
        hosts: names of the hosts that they live on -> the machine that each is; empty: this one.
    """

    section: str
    location: Location
    placement: Placement
    hosts: Mapping[str, str] = field(default_factory=dict)

    def away(self) -> list[str]:
        """What puts its weights into another process than the controller's: keys, or words."""
        placement = self.placement
        moves = {
            "procs": placement.procs > 1,
            "isolate": placement.isolate,
            "with_gpus": placement.with_gpus,
            "env": bool(placement.env),
        }
        keys = [f"{self.section}.{key}" for key, moved in moves.items() if moved]
        if self.location.own_process and not keys:
            return [f"{self.section}.use (its weights are in a process of its own)"]
        return keys


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the two ends live.

    Args:
        in_process: the runtime keeps replicas in the controller's process unless their placement
            says otherwise.
        fabric: what connects the runtime's processes, if it says so.
        ends: those that there are.
    """

    in_process: bool
    fabric: str
    ends: tuple[End, ...]

    @property
    def needed(self) -> Reach:
        """How far apart the ends are."""
        if len({machine for end in self.ends for machine in end.hosts.values()}) > 1:
            return "cluster"
        together = self.in_process and not any(end.away() for end in self.ends)
        return "process" if together else "host"

    @property
    def on_cuda(self) -> bool:
        """Both ends are on CUDA devices of this host."""
        cuda = [end.location.cuda for end in self.ends]
        return self.in_process and len(cuda) == 2 and all(cuda)

    def far_enough(self, transport: TransportComponent) -> bool:
        """Whether a transport's ends may be as far apart as these are."""
        return REACHES.index(transport.reach) >= REACHES.index(self.needed)

    def connected(self, transport: TransportComponent) -> bool:
        """Whether the runtime has the fabric that a transport needs beyond one process."""
        return self.needed == "process" or transport.fabric in ("", self.fabric)

    def _reached_by(self, transport: TransportComponent) -> bool:
        cuda = self.on_cuda or not transport.cuda_only
        return cuda and self.far_enough(transport) and self.connected(transport)

    def default(self, catalog: Catalog) -> TransportComponent | None:
        """The default transport with the narrowest reach that is enough.

        Where none is, the one that reaches farthest, so that the check before a start says why.
        """
        defaults = [each for each in catalog.defaults("transport") if _is_transport(each)]
        usable = [each for each in defaults if self.connected(each)]
        usable = [each for each in usable if self.on_cuda or not each.cuda_only]
        reaching = [each for each in usable if self.far_enough(each)]
        if not reaching and catalog.rival_defaults("transport"):
            return None  # one of the rivals may reach: a person has to choose
        return next(iter(reaching or usable[-1:]), None)

    def instead(self, catalog: Catalog) -> TransportComponent | None:
        """A transport that goes from one end to the other: a default one, or else any."""
        chosen = self.default(catalog)
        others = [catalog.get("transport", name) for name in catalog.names("transport")]
        for each in (chosen, *others):
            if _is_transport(each) and self._reached_by(each):
                return each
        return None


def _is_transport(component: object) -> TypeGuard[TransportComponent]:
    return isinstance(component, TransportComponent)
