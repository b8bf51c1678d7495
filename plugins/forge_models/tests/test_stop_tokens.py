"""Which tokens end a completion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge_core import DataError
from forge_models.stop_tokens import stop_token_ids
from forge_testing.byte_tokenizer import byte_tokenizer


@pytest.mark.parametrize(
    ("named", "expected"), [(7, {7}), ([7, 3], {3, 7}), (None, set()), ([], set())]
)
def test_the_models_and_the_tokenizers(tmp_path: Path, named: object, expected: set[int]) -> None:
    tokenizer = byte_tokenizer(chat_template=None, eos="</s>")
    assert tokenizer.eos_token_id is not None
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert stop_token_ids(tmp_path, tokenizer) == tuple(sorted(expected | {tokenizer.eos_token_id}))


def test_a_chat_template_ends_turns_with_a_token_of_its_own(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(eos="<|endoftext|>")
    named = [tokenizer.convert_tokens_to_ids(text) for text in ("<|im_end|>", "<|endoftext|>")]
    assert stop_token_ids(tmp_path, tokenizer) == tuple(sorted(named))


def test_none_at_all(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(chat_template=None)
    tokenizer.eos_token = None
    assert stop_token_ids(tmp_path, tokenizer) == ()


@pytest.mark.parametrize("text", ["{", "[]", '"eos"'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(DataError, match=r"generation_config\.json: not a JSON object"):
        stop_token_ids(tmp_path, byte_tokenizer())
