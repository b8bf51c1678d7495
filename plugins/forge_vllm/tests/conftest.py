"""A run of one short stage with the engine, on a model of a size that vLLM's CPU kernels know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_testing import runs

Config = dict[str, Any]


@pytest.fixture
def small_config(tmp_path: Path) -> Config:
    """GRPO for three steps on sums of one-digit numbers, from random weights."""
    return runs.small_config(
        {"head_dim": 32},
        generator={
            "use": "vllm",
            "engine": {"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 64},
        },
        checkpointing={"output_dir": str(tmp_path / "runs")},
    )
