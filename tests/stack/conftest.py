"""A run of two short stages on a tiny model: the quickstart's shape at a hundredth of its size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_core.models.folder import load_model, load_tokenizer

Config = dict[str, Any]


@pytest.fixture
def small_config(tmp_path: Path) -> Config:
    """SFT for three steps, then GRPO for three, on sums of one-digit numbers."""
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
                    "head_dim": 16,
                    "intermediate_size": 64,
                    "max_position_embeddings": 64,
                    "initializer_range": 0.2,
                },
            }
        },
        "dataset": {"use": "arithmetic", "low": 0, "high": 9},
        "eval_dataset": {"use": "arithmetic", "low": 0, "high": 9, "split": "test"},
        "rewards": {"exact_match": {}},
        "sampling": {"max_tokens": 3},
        "checkpointing": {"output_dir": str(tmp_path / "runs")},
        "stages": {
            "sft": {
                "recipe": {"use": "sft"},
                "training": {"steps": 3, "batch_size": 16, "learning_rate": 0.01},
            },
            "grpo": {
                "recipe": {"use": "grpo", "group_size": 8},
                "training": {"steps": 3, "batch_size": 32, "learning_rate": 0.001},
            },
        },
    }


@pytest.fixture
def write_config(tmp_path: Path) -> Any:
    """``write_config(config) -> path`` of a YAML file."""

    def write(config: Config, name: str = "small.yaml") -> Path:
        path = tmp_path / name
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    return write


@pytest.fixture(scope="session")
def chat_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template: ``<user>hi;<assistant>``."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    load_model(tiny_model).save_pretrained(folder)
    tokenizer = load_tokenizer(tiny_model)
    messages = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    tokenizer.chat_template = messages + "{% if add_generation_prompt %}<assistant>{% endif %}"
    tokenizer.save_pretrained(folder)
    return folder


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """``metrics.jsonl`` without what depends on the clock."""
    rows = lines_of(folder / "metrics.jsonl")
    for row in rows:
        assert row.pop("timing")
    return rows
