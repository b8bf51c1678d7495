"""Models with random weights in the shapes of Qwen3, batches for them, and what a batch costs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 128,
        "vocab_size": 1024,
    },
    "0.6b": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151_936,
    },
    "1.7b": {
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 6144,
        "vocab_size": 151_936,
    },
}
"""As published; the embeddings are tied."""


def make(shape: str, folder: Path, device: str) -> int:
    """Write a model folder in bfloat16 and say how many parameters it has."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        **SHAPES[shape],
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, trust_remote_code=False
        )
    model.save_pretrained(folder)
    words = {"a": 0, "b": 1}
    Tokenizer(models.WordLevel(words, unk_token="a")).save(str(folder / "tokenizer.json"))
    return sum(parameter.numel() for parameter in model.parameters())


def shape_of(folder: Path) -> dict[str, Any]:
    shape: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return shape


def rows(folder: Path, tokens: int, lengths: tuple[int, int]) -> list[list[int]]:
    """Random token ids in rows of random lengths, that many in all."""
    vocabulary, chance = shape_of(folder)["vocab_size"], random.Random(0)
    made: list[list[int]] = []
    left = tokens
    while left >= lengths[0]:
        length = min(chance.randint(*lengths), left)
        made.append([chance.randrange(1, vocabulary) for _ in range(length)])
        left -= length
    return made


def operations(folder: Path, batch: list[list[int]]) -> int:
    """Floating-point operations of a forward and backward pass: six for each weight of a matrix and
    token, and causal attention. What is computed twice to save memory does not count."""
    shape = shape_of(folder)
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    queries = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    layer = hidden * (2 * queries + 2 * keys + 3 * shape["intermediate_size"])
    weights = layers * layer + shape["vocab_size"] * hidden
    return sum(6 * len(row) * weights + 6 * layers * queries * len(row) ** 2 for row in batch)
