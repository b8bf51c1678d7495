"""A run of one short stage with the engine, on a model of a size that vLLM's CPU kernels know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

Config = dict[str, Any]


@pytest.fixture
def small_config(tmp_path: Path) -> Config:
    """GRPO for three steps on sums of one-digit numbers, from random weights."""
    return {
        "name": "small",
        "model": {
            "init": {
                "architecture": "qwen3",
                "characters": "0123456789+=",
                "config": {
                    "hidden_size": 32,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "num_key_value_heads": 1,
                    "head_dim": 32,
                    "intermediate_size": 64,
                    "max_position_embeddings": 64,
                    "initializer_range": 0.2,
                },
            }
        },
        "generator": {
            "use": "vllm",
            "engine": {"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 64},
        },
        "dataset": {"use": "arithmetic", "low": 0, "high": 9},
        "rewards": {"exact_match": {}},
        "sampling": {"max_tokens": 3},
        "checkpointing": {"output_dir": str(tmp_path / "runs")},
        "recipe": {"use": "grpo", "group_size": 8},
        "training": {"steps": 3, "batch_size": 32, "learning_rate": 0.001},
    }


@pytest.fixture
def write_config(tmp_path: Path) -> Any:
    """``write_config(config) -> path`` of a YAML file."""

    def write(config: Config, name: str = "small.yaml") -> Path:
        path = tmp_path / name
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    return write
