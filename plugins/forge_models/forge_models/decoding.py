"""Token ids to text, for many completions at a time.

A byte-level tokenizer (GPT-2's, Llama 3's, Qwen's) says of each token, whatever stands before it,
which bytes it is: a table of them makes text ten times as fast as the tokenizer does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import IntArray

_PROBES = 512
"""Tokens of the table that are compared with what the tokenizer says, before the table is used."""

_TIDIED = "it 's , well . is n't it ? yes !"
"""Text that some tokenizers tidy up when they decode it."""

_tables: WeakKeyDictionary[Any, tuple[int, _Table | None]] = WeakKeyDictionary()
"""Tokenizer -> how many tokens it had when the table was made, and the table."""


def decode_all(rows: Sequence[IntArray], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text of each row of token ids, without special tokens.

    The same as ``tokenizer.decode(row, skip_special_tokens=True)`` of each.
    """
    size = len(tokenizer)
    known, table = _tables.get(tokenizer, (-1, None))
    if known != size:
        table = _Table.of(tokenizer)
        _tables[tokenizer] = size, table
    if table is not None:
        return table.decode(rows)
    texts = []
    for row in rows:
        text = tokenizer.decode(row, skip_special_tokens=True)
        assert isinstance(text, str)
        texts.append(text)
    return texts


class _Table:
    """The bytes of every token, end to end.

    Args:
        tokens: the bytes of each token id; none for special tokens and ids without a token.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._bytes = np.frombuffer(b"".join(tokens), np.uint8)
        # One more, for ids beyond the vocabulary.
        self._lengths = np.array([*map(len, tokens), 0], np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._one_each = bool((self._lengths[:-1] == 1).all())

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> _Table | None:
        """The table of a tokenizer; None where its tokens are not bytes, or it has another idea."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or not _is_byte_level(backend.decoder):
            return None
        tokens = _token_bytes(backend)
        table = cls(tokens)
        rng = np.random.default_rng(0)
        probes = rng.integers(0, len(tokens), (_PROBES // 32, 32), dtype=np.int32)
        rows = [*probes, np.array(backend.encode(_TIDIED).ids, np.int32)]
        said = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
        return table if table.decode(rows) == said else None

    def decode(self, rows: Sequence[npt.NDArray[np.int32]]) -> list[str]:
        """The text of each row; bytes that are no UTF-8 become U+FFFD, as the tokenizer does it."""
        if not rows:
            return []
        ids = np.concatenate(rows)
        unknown = len(self._lengths) - 1
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= unknown):
            ids = np.where((ids < 0) | (ids >= unknown), unknown, ids)
        lengths = self._lengths[ids]
        ends = np.cumsum(lengths)
        # Of each byte of the text, its place in the table: one more than the byte before, but
        # where a token begins.
        places = np.repeat(self._starts[ids] - (ends - lengths), lengths)
        places += np.arange(len(places))
        text = self._bytes[places].tobytes()
        texts, start = [], 0
        last = np.cumsum([len(row) for row in rows])
        for end in [int(ends[index - 1]) if index else 0 for index in last]:
            texts.append(text[start:end].decode("utf-8", "replace"))
            start = end
        return texts


def _is_byte_level(decoder: Any) -> bool:
    if decoder is None:
        return False
    state: Any = json.loads(decoder.__getstate__())
    return isinstance(state, dict) and state.get("type") == "ByteLevel"


def _token_bytes(backend: Any) -> list[bytes]:
    """The bytes of each token id, as decoder ``ByteLevel`` of the tokenizers library has them."""
    characters = _byte_characters()
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    special = {
        token for token, added in backend.get_added_tokens_decoder().items() if added.special
    }
    tokens = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        if token not in special:
            try:
                tokens[token] = text.translate(characters).encode("latin-1")
            except UnicodeEncodeError:
                tokens[token] = text.encode()
    return tokens


def _byte_characters() -> dict[int, int]:
    """The characters that represent bytes in a byte-level vocabulary -> those bytes (GPT-2's
    ``bytes_to_unicode``). Others become a character that is no byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    found = {byte: byte for byte in shown} | {256 + place: at for place, at in enumerate(hidden)}
    no_byte = 0xFFFF
    return {code: found.get(code, no_byte) for code in range(512)}
