"""Generator ``vllm`` as the kernel sees it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from forge_core import Generator, ModelInit, Selection, Transport
from forge_testing.conformance.generator import WINDOW, GeneratorConformance
from forge_testing.policies import policy_init
from forge_torch.plugin import MEMORY
from forge_torch.settings import MemorySettings
from forge_vllm.plugin import GENERATOR
from forge_vllm.settings import VllmSettings

ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 64}


class TestInProcess(GeneratorConformance):
    # Heads of the least size that vLLM's attention knows on a CPU.
    model_init: ClassVar[ModelInit] = policy_init(head_dim=32, max_position_embeddings=WINDOW)
    keeps_cache_in_flight: ClassVar[bool] = False

    @pytest.fixture
    def selection(self) -> Selection[Generator]:
        settings = VllmSettings(engine=ENGINE, engine_process=False)
        return Selection(family="generator", component=GENERATOR, settings=settings)

    @pytest.fixture
    def transport(self) -> Selection[Transport]:
        return Selection(family="transport", component=MEMORY, settings=MemorySettings())
