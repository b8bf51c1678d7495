"""Shapes of models for tests: tiny ones that are made from a seed, and large ones as published."""

from __future__ import annotations

from typing import Any


def tiny_shape(**changes: Any) -> dict[str, Any]:
    """Keys of Hugging Face's model config: two layers, some ten thousand parameters.

    Args:
        changes: keys in place of these, or beside them.
    """
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        **changes,
    }


LLAMA_31_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
QWEN3_1_7B: dict[str, Any] = QWEN3_8B | {
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "intermediate_size": 6144,
    "tie_word_embeddings": True,
}
