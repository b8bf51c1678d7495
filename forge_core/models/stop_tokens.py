"""Which tokens end a completion: the model's own word for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def stop_token_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """End-of-sequence ids of ``generation_config.json`` and of the tokenizer, in ascending order.

    Chat models often name several in the former (end of turn, end of text) and one in the latter.
    """
    ids: set[int] = set()
    config = folder / "generation_config.json"
    if config.is_file():
        named = json.loads(config.read_text()).get("eos_token_id")
        ids.update(named if isinstance(named, list) else [] if named is None else [named])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(ids))
