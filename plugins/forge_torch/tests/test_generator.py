"""Generator ``torch`` as the kernel sees it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from forge_core import (
    ConfigError,
    DataError,
    Generator,
    ModelSection,
    Sampling,
    Selection,
    Transport,
)
from forge_testing.conformance.generator import WINDOW, GeneratorConformance
from forge_testing.context import bare_context
from forge_testing.policies import policy_init
from forge_torch.checks import check_generator
from forge_torch.plugin import GENERATOR, MEMORY
from forge_torch.settings import MemorySettings, TorchGeneratorSettings


class TestFastPath(GeneratorConformance):
    """Qwen3: decoded by ``LlamaDecoder``."""

    @pytest.fixture
    def selection(self) -> Selection[Generator]:
        settings = TorchGeneratorSettings(device="cpu")
        return Selection(family="generator", component=GENERATOR, settings=settings)

    @pytest.fixture
    def transport(self) -> Selection[Transport]:
        return Selection(family="transport", component=MEMORY, settings=MemorySettings())


class TestGeneralPath(TestFastPath):
    """A model with a sliding window and untied embeddings: decoded by ``HFDecoder``."""

    model_init = policy_init(
        "mistral",
        max_position_embeddings=WINDOW,
        sliding_window=16,
        tie_word_embeddings=False,
    )


class TestFewRows(TestFastPath):
    """More samples than rows: all wait their turn."""

    @pytest.fixture
    def selection(self) -> Selection[Generator]:
        settings = TorchGeneratorSettings(device="cpu", max_batch_rows=5)
        return Selection(family="generator", component=GENERATOR, settings=settings)


@pytest.fixture
def longrope_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with other rotary frequencies beyond 16 tokens."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    factors = config["head_dim"] // 2
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * factors,
        "long_factor": [8.0] * factors,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


async def test_rows_stay_within_one_set_of_rotary_frequencies(longrope_model: Path) -> None:
    """Beyond 16 tokens, transformers would change those of every row of the batch."""
    settings = TorchGeneratorSettings(device="cpu")
    generator = GENERATOR.build(settings, bare_context(longrope_model))
    try:
        (completion,) = await generator.generate([5] * 10, Sampling(max_tokens=50))
        assert len(completion.tokens) <= 6
        with pytest.raises(DataError, match="16"):
            await generator.generate([5] * 16, Sampling(max_tokens=1))
    finally:
        await generator.close()


def test_a_window_over_two_sets_of_rotary_frequencies_is_refused(longrope_model: Path) -> None:
    settings = TorchGeneratorSettings(device="cpu", max_model_len=17)
    context = bare_context(longrope_model)
    message = r"generator\.max_model_len: 17 is more than 16; .*longrope"
    with pytest.raises(ConfigError, match=message):
        GENERATOR.build(settings, context)
    selection = Selection(family="generator", component=GENERATOR, settings=settings)
    with pytest.raises(ConfigError, match=message):  # before anything starts
        selection.check(context)


def test_weights_that_travel_in_another_type_are_refused_before_a_start() -> None:
    transport = Selection(
        family="transport", component=MEMORY, settings=MemorySettings(dtype="bfloat16")
    )
    context = bare_context(transport=transport)
    with pytest.raises(ConfigError, match=r"transport\.dtype=bfloat16: generator torch keeps"):
        check_generator(TorchGeneratorSettings(), context)
    same = replace(context, model=ModelSection(dtype="bfloat16"))
    check_generator(TorchGeneratorSettings(), same)
