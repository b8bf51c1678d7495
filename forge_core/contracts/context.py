"""What a component is built with: the run's shared sections, and where its replicas go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from forge_core.contracts.protocols import Loss, OptimizerFactory, Schedule, Transport
    from forge_core.contracts.sections import (
        DistributedSection,
        ModelSection,
        TrainingSection,
    )
    from forge_core.contracts.selection import Selection


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How many replicas of a component, of how many processes each, and what these are given.

    Args:
        replicas: copies of the component behind one handle.
        procs: ranks of one replica; each is a process.
        isolate: a process of its own for each replica even with one rank.
        with_gpus: one device for each rank. All ranks of a replica on one host see its devices
            (``CUDA_VISIBLE_DEVICES``); ``LOCAL_RANK`` says which is whose, as under torchrun.
        env: environment variables of each rank.
    """

    replicas: int = 1
    procs: int = 1
    isolate: bool = False
    with_gpus: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_processes(self) -> bool:
        """Whether runtime ``local`` gives the replicas processes of their own."""
        return self.isolate or self.procs > 1 or self.with_gpus or bool(self.env)


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What a component may know of the run it is built for. Picklable, so that it travels.

    Args:
        model: the model section; once a run has started, ``model.path`` is a folder in Hugging Face
            layout with weights and tokenizer.
        training: the shared training section.
        distributed: the shared distributed section.
        seed: the run's seed; derive your own with ``forge_core.derive_seed``.
        channel: name shared by all components of one stage; transports meet on it.
        loss: for trainers, the loss to train with.
        optimizer: for trainers, what changes the weights.
        schedule: for trainers, the course of the learning rate; None: constant after warmup.
        transport: for trainers and generators, the way that weights travel.
        replica: index of the replica being built.
        rank: rank of this process in the replica.
        world_size: processes in the replica.
        services: where the replicas of all services of the stage go, by service; a runtime checks
            them together before it starts the first.
        logs: folder that processes of the run write their output to; None: to our stderr.
    """

    model: ModelSection
    training: TrainingSection
    distributed: DistributedSection
    seed: int = 0
    channel: str = "default"
    loss: Selection[Loss] | None = None
    optimizer: Selection[OptimizerFactory] | None = None
    schedule: Selection[Schedule] | None = None
    transport: Selection[Transport] | None = None
    replica: int = 0
    rank: int = 0
    world_size: int = 1
    services: Mapping[str, Placement] = field(default_factory=dict)
    logs: Path | None = None
