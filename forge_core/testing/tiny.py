"""The shape of the tiny models that tests make from a seed."""

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
