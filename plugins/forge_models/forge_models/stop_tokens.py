"""Which tokens end a completion: the model's own word for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import DataError
from forge_models.prompts import end_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def stop_token_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end a completion, in ascending order.

    They are the end-of-sequence ids of ``generation_config.json`` (chat models often name several)
    and of the tokenizer, and the token that the chat template ends a turn with.

    Raises:
        DataError: the file is not what it must be.
    """
    ids = {tokenizer.eos_token_id, end_of_turn(tokenizer)} - {None}
    config = folder / "generation_config.json"
    if config.is_file():
        try:
            named = json.loads(config.read_text(encoding="utf-8")).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise DataError(f"{config}: not a JSON object: {error}") from error
        ids.update(named if isinstance(named, list) else [] if named is None else [named])
    return tuple(sorted(ids))
