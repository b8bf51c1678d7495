"""Sequences that no model can be trained on are refused in one line."""

from __future__ import annotations

import pytest

from forge_core import DataError, TrainSequence, UsageError
from forge_tensors.limits import check_sequences


def sequence(*tokens: int) -> TrainSequence:
    return TrainSequence(list(tokens), [False] + [True] * (len(tokens) - 1))


def test_what_fits_passes() -> None:
    check_sequences([sequence(0, 9), sequence(3, 4, 5)], window=3, vocabulary=10)
    check_sequences([sequence(*range(9))], window=None, vocabulary=10)
    check_sequences([], window=3, vocabulary=10)


def test_a_long_sequence_is_refused() -> None:
    with pytest.raises(UsageError, match="3 tokens is longer than the model's window of 2"):
        check_sequences([sequence(1, 2), sequence(1, 2, 3)], window=2, vocabulary=10)


@pytest.mark.parametrize("token", [10, -1])
def test_an_unknown_token_is_named_with_its_place(token: int) -> None:
    with pytest.raises(DataError) as raised:
        check_sequences([sequence(1, 2), sequence(1, 2, token)], window=None, vocabulary=10)
    assert str(raised.value) == (
        f"token {token} is not in the model's vocabulary of 10 (ids 0 to 9): position 2 of "
        "sequence 2 of 2; was it made with another model's tokenizer?"
    )
