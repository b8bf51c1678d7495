"""Tokens to text while they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HALF = "\ufffd"
"""What a tokenizer decodes the bytes of an unfinished character to."""


class TextStream:
    """The text that tokens add, as soon as it is certain, without special tokens.

    A token may be part of a character, and some tokenizers decode a token differently behind
    others; so the last piece is decoded together with the new tokens, and text that ends in half a
    character waits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = 0  # where the last piece begins
        self._shown = 0  # where it ends

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is certain now and was not before."""
        self._tokens += tokens
        text = self._new_text()
        if text.endswith(_HALF):
            return ""
        self._context, self._shown = self._shown, len(self._tokens)
        return text

    def end(self) -> str:
        """What is left when no more tokens come."""
        return self._new_text()

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._context : self._shown])
        return self._decode(self._tokens[self._context :])[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        assert isinstance(text, str)
        return text
