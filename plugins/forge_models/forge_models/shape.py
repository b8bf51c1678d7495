"""What a model's config says of its size, read without loading weights or importing transformers.

The formulas are those of the Llama family (Llama, Qwen, Mistral): grouped-query attention, a gated
feed-forward layer, RMS norms. Other architectures have no shape here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_core import ModelSection, ModelShape

FAMILIES = {"llama": 0, "mistral": 0, "qwen3": 2}
"""Model type -> norms over each head in an attention layer."""


def model_shape(model: ModelSection) -> ModelShape | None:
    """The shape of a model section's model, from ``config.json`` or ``init``.

    None if the folder is not there yet, or the architecture is not one of ``FAMILIES``.
    """
    config = model_config(model)
    return shape_of(config) if config is not None else None


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a ``config.json`` describes; None if it is not one of ``FAMILIES``."""
    if config.get("model_type") not in FAMILIES or config.get("attention_bias"):
        return None
    try:
        heads = config["num_attention_heads"]
        return ModelShape(
            model_type=config["model_type"],
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            window=config["max_position_embeddings"],
            head_norms=FAMILIES[config["model_type"]],
        )
    except KeyError:  # left to the architecture's defaults, which only transformers knows
        return None


def model_window(model: ModelSection) -> int | None:
    """Most positions that a model section's model knows; None if its config does not say."""
    config = model_config(model) or {}
    nested = config.get("text_config")
    for fields in (config, nested if isinstance(nested, Mapping) else {}):
        for name in ("max_position_embeddings", "n_positions"):
            if isinstance(fields.get(name), int):
                return int(fields[name])
    return None


def model_config(model: ModelSection) -> Mapping[str, Any] | None:
    """A model section's ``config.json`` as it is written, or what ``init`` says of it.

    Fields left to the architecture's defaults are not in it. None if the file is not there yet, or
    is no JSON object.
    """
    if model.init is not None:
        special = 2  # the padding and end tokens of character_tokenizer
        vocab = len(model.init.characters) + special
        return {
            "model_type": model.init.architecture,
            "vocab_size": vocab,
            **model.init.config,
        }
    folder = model.path or (Path(model.name) if model.name else None)
    if folder is None or not (folder / "config.json").is_file():
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        return None  # the folder's own check says what is wrong with it
    return config if isinstance(config, dict) else None
