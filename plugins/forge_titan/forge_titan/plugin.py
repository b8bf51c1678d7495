"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from forge_core import Finding, Preset, TrainerComponent, hookimpl
from forge_titan.checks import TESTED, check_trainer, trainer_cautions, trainer_location
from forge_titan.memory import trainer_memory
from forge_titan.settings import TitanTrainerSettings

PRESETS = Path(__file__).parent / "presets"

TRAINER = TrainerComponent(
    name="titan",
    settings=TitanTrainerSettings,
    build="forge_titan.start:build",
    check=check_trainer,
    cautions=trainer_cautions,
    memory=trainer_memory,
    location=trainer_location,
    gives={"top_logprobs", "log_softmax", "hidden_states"},
    optimizers=True,
    schedules=True,
    summary="TorchTitan: Qwen3 and Llama 3 over one or many processes, from and to Hugging Face",
)


@hookimpl
def forge_trainers() -> Iterable[TrainerComponent]:
    yield TRAINER


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_doctor.engines import Engine

    yield Engine(plugin="forge-rl-titan", tested=TESTED, package="torchtitan").finding()


@hookimpl
def forge_presets() -> Iterable[Preset]:
    for name, summary in (
        ("quickstart-titan", "the quickstart on TorchTitan, two ranks on the CPU"),
        ("llama3-8b-sft", "supervised fine-tuning of Llama 3.1 8B, eight GPUs of 80 GB"),
    ):
        yield Preset(name=name, path=PRESETS / f"{name}.yaml", summary=summary)
