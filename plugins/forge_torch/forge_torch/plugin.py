"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from forge_core import Finding, GeneratorComponent, TrainerComponent, TransportComponent, hookimpl
from forge_torch.checks import (
    check_cuda_ipc,
    check_generator,
    check_trainer,
    generator_location,
    most_tokens,
    trainer_cautions,
    trainer_location,
)
from forge_torch.memory import trainer_memory
from forge_torch.settings import (
    CudaIpcSettings,
    MemorySettings,
    ShmSettings,
    TorchGeneratorSettings,
    TorchTrainerSettings,
)

GENERATOR = GeneratorComponent(
    name="torch",
    settings=TorchGeneratorSettings,
    build="forge_torch.generator.generator:TorchGenerator",
    check=check_generator,
    location=generator_location,
    max_tokens=most_tokens,
    summary="continuous batched decoding of Hugging Face models on CPU or CUDA",
    default=True,
)
TRAINER = TrainerComponent(
    name="torch",
    settings=TorchTrainerSettings,
    build="forge_torch.trainer.trainer:TorchTrainer",
    check=check_trainer,
    cautions=trainer_cautions,
    memory=trainer_memory,
    location=trainer_location,
    gives={"top_logprobs", "log_softmax", "hidden_states", "values"},
    optimizers=True,
    schedules=True,
    summary="Hugging Face causal language models in one process, on CPU or CUDA",
    default=True,
)
MEMORY = TransportComponent(
    name="memory",
    settings=MemorySettings,
    build="forge_torch.transports.memory:MemoryTransport",
    summary="weights copied once, within one process",
    reach="process",
    default=True,
)
SHM = TransportComponent(
    name="shm",
    settings=ShmSettings,
    build="forge_torch.transports.shm:ShmTransport",
    summary="shared memory, between the processes of one host",
    reach="host",
    default=True,
)
CUDA_IPC = TransportComponent(
    name="cuda_ipc",
    settings=CudaIpcSettings,
    build="forge_torch.transports.cuda_ipc:CudaIpcTransport",
    check=check_cuda_ipc,
    summary="device memory, between the processes of one host with CUDA",
    reach="host",
    cuda_only=True,
    default=True,
)


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
