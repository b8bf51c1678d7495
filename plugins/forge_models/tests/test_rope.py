"""Which lengths change a model's rotary frequencies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from forge_models.rope import length_boundaries, stored_boundaries

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("config", "boundaries"),
    [
        ({"model_type": "qwen3"}, ()),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, ()),
        ({"model_type": "gemma3_text"}, ()),  # one set for each type of layer
        ({"model_type": "gpt2"}, ()),
        (
            {
                "model_type": "phi3",
                "original_max_position_embeddings": 16,
                "rope_scaling": {"type": "longrope", **LONG},
            },
            (16,),
        ),
        (
            {
                "model_type": "llama",
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 16,
                    **LONG,
                },
            },
            (16,),
        ),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_boundaries(tmp_path: Path, config: dict[str, Any], boundaries: tuple[int, ...]) -> None:
    stored = {**SIZES, **config}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert stored_boundaries(stored) == boundaries
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert length_boundaries(loaded.get_text_config()) == boundaries
    written = loaded.to_dict()
    assert stored_boundaries(written) == boundaries
