"""Generator ``vllm`` as the kernel sees it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from forge_core import Selection
from forge_core.config.sections import ModelInit
from forge_core.protocols import Generator, Transport
from forge_core.testing.conformance.generator import WINDOW, GeneratorConformance
from forge_torch.transports.components import MEMORY, MemorySettings
from forge_vllm.settings import GENERATOR, VllmSettings

ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 64}

MODEL = ModelInit(
    architecture="qwen3",
    characters="0123456789+-*/=() abcdefgh",
    config={
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        # The least that vLLM's attention knows on a CPU.
        "head_dim": 32,
        "max_position_embeddings": WINDOW,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    },
)


class TestInProcess(GeneratorConformance):
    model_init: ClassVar[ModelInit] = MODEL
    keeps_cache_in_flight: ClassVar[bool] = False

    @pytest.fixture
    def selection(self) -> Selection[Generator]:
        settings = VllmSettings(engine=ENGINE, engine_process=False)
        return Selection(family="generator", component=GENERATOR, settings=settings)

    @pytest.fixture
    def transport(self) -> Selection[Transport]:
        return Selection(family="transport", component=MEMORY, settings=MemorySettings())
