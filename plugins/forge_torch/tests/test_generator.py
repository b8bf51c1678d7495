"""Generator ``torch`` as the kernel sees it."""

from __future__ import annotations

import pytest

from forge_core import Selection
from forge_core.protocols import Generator, Transport
from forge_core.testing.conformance.generator import WINDOW, GeneratorConformance
from forge_core.testing.policies import policy_init
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
