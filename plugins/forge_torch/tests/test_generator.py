"""Generator ``torch`` as the kernel sees it."""

from __future__ import annotations

import pytest

from forge_core import Selection
from forge_core.config.sections import ModelInit
from forge_core.protocols import Generator, Transport
from forge_core.testing.conformance.generator import WINDOW, GeneratorConformance
from forge_torch.generator_settings import GENERATOR, TorchGeneratorSettings
from forge_torch.transports.components import MEMORY, MemorySettings


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

    model_init = ModelInit(
        architecture="mistral",
        characters="0123456789+-*/=() abcdefgh",
        config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": WINDOW,
            "sliding_window": 16,
            "tie_word_embeddings": False,
            "initializer_range": 0.3,
        },
    )


class TestFewRows(TestFastPath):
    """More samples than rows: all wait their turn."""

    @pytest.fixture
    def selection(self) -> Selection[Generator]:
        settings = TorchGeneratorSettings(device="cpu", max_batch_rows=5)
        return Selection(family="generator", component=GENERATOR, settings=settings)
