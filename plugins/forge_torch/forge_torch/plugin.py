"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import Finding, GeneratorComponent, TrainerComponent, TransportComponent, hookimpl
from forge_torch.generator_settings import GENERATOR
from forge_torch.trainer_settings import TRAINER
from forge_torch.transports.components import CUDA_IPC, MEMORY, SHM

if TYPE_CHECKING:
    pass


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_torch.health import shared_memory

    yield from shared_memory(Path("/dev/shm"))


@hookimpl
def forge_generators() -> Iterable[GeneratorComponent]:
    yield GENERATOR


@hookimpl
def forge_trainers() -> Iterable[TrainerComponent]:
    yield TRAINER


@hookimpl
def forge_transports() -> Iterable[TransportComponent]:
    yield MEMORY
    yield SHM
    yield CUDA_IPC
