"""Strings that end a completion: found in the text of its last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONTEXT = 8
"""Tokens before those that could hold the string: the first of a text may be decoded otherwise."""


class StopStrings:
    """Tells the token that completes one of some strings.

    Args:
        tokenizer: of the model.
        strings: to look for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        # A token has a byte of text at least, but for special ones, which are left out.
        self._tokens = max(len(string.encode()) for string in strings) + _CONTEXT

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Whether one of the strings is in the text of the tokens, of which those before the last
        did not hold it."""
        text = self._tokenizer.decode(list(tokens[-self._tokens :]), skip_special_tokens=True)
        assert isinstance(text, str)
        return any(string in text for string in self._strings)
