"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import Finding, Preset, TrainerComponent, hookimpl
from forge_titan.settings import TESTED, TRAINER

if TYPE_CHECKING:
    pass

PRESETS = Path(__file__).parent / "presets"


@hookimpl
def forge_trainers() -> Iterable[TrainerComponent]:
    yield TRAINER


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_core.doctor.engines import Engine

    yield Engine(plugin="forge-rl-titan", tested=TESTED, package="torchtitan").finding()


@hookimpl
def forge_presets() -> Iterable[Preset]:
    for name, summary in (
        ("quickstart-titan", "the quickstart on TorchTitan, two ranks on the CPU"),
        ("llama3-8b-sft", "supervised fine-tuning of Llama 3.1 8B, eight GPUs of 80 GB"),
    ):
        yield Preset(name=name, path=PRESETS / f"{name}.yaml", summary=summary)
