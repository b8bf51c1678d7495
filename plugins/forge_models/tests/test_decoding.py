"""The text of many rows of tokens at once is what the tokenizer says of each."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from forge_models import decoding
from forge_models.decoding import decode_all
from forge_testing.byte_tokenizer import byte_tokenizer


def test_any_tokens_are_decoded_as_the_tokenizer_does_it() -> None:
    tokenizer = byte_tokenizer(merges=[("a", "b"), ("Ã", "©"), ("Ġ", "x")], added=["<x y>"])
    tokenizer.add_tokens(["<tool call>", "é"])  # ordinary ones, with characters that are no bytes
    rng = np.random.default_rng(0)
    for length in (0, 1, 2, 7, 300):
        rows = [
            rng.integers(0, len(tokenizer) + 3, length + extra, dtype=np.int32)
            for extra in (0, 1, 0, 5)
        ]
        said = [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in rows]
        assert decode_all(rows, tokenizer) == said
    assert decode_all([], tokenizer) == []
    assert decoding._tables[tokenizer][1] is not None


def test_tokens_that_are_added_later_are_known() -> None:
    tokenizer = byte_tokenizer()
    ids = np.array(tokenizer.encode("ab", add_special_tokens=False), np.int32)
    assert decode_all([ids], tokenizer) == ["ab"]
    tokenizer.add_tokens(["<more>"])
    added = np.array([len(tokenizer) - 1], np.int32)
    assert decode_all([ids, added], tokenizer) == ["ab", "<more>"]


def test_a_tokenizer_that_is_not_byte_level_speaks_for_itself() -> None:
    from tokenizers import decoders

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    ids = np.array(tokenizer.encode("ab", add_special_tokens=False), np.int32)
    assert decode_all([ids], tokenizer) == [tokenizer.decode(ids, skip_special_tokens=True)]
    assert decoding._tables[tokenizer] == (len(tokenizer), None)
