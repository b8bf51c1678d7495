"""Packing keeps every token, and says what is wrong with a sequence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.tensors.batch import LossBatch, pack
from forge_core.types import TrainSequence


@st.composite
def sequences(draw: st.DrawFn) -> list[TrainSequence]:
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
        mask = [False, *(draw(st.booleans()) for _ in tokens[1:])]
        fields = {"whole": draw(st.floats(-1, 1)), "each": [float(i) for i in range(len(tokens))]}
        rows.append(TrainSequence(tokens, mask, fields))
    return rows


@settings(max_examples=50, deadline=None)
@given(sequences())
def test_every_token_stands_where_it_should(rows: list[TrainSequence]) -> None:
    batch = pack(rows)
    assert batch.tokens.tolist() == [token for row in rows for token in row.tokens]
    assert batch.positions.tolist() == [i for row in rows for i in range(len(row.tokens))]
    assert batch.lengths == tuple(len(row.tokens) for row in rows)
    trained = [(s, i) for s, row in enumerate(rows) for i, on in enumerate(row.loss_mask) if on]
    loss = batch.loss_batch
    assert batch.tokens[batch.targets].tolist() == [rows[s].tokens[i] for s, i in trained]
    assert loss.sequence.tolist() == [s for s, _ in trained]
    assert loss.num_sequences == len(rows)
    assert loss.field("each").tolist() == [float(i) for _, i in trained]
    whole = torch.tensor([rows[s].fields["whole"] for s, _ in trained], dtype=torch.float32)
    assert torch.equal(loss.field("whole"), whole)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one"),
        ([TrainSequence([], [])], "sequence 0 is empty"),
        ([TrainSequence([1, 2], [True, True])], "sequence 0 trains its first token"),
        ([TrainSequence([1, 2], [False])], "loss mask of 1"),
        ([TrainSequence([1, 2], [False, True], {"a": [1.0]})], "1 numbers in field 'a'"),
        (
            [TrainSequence([1, 2], [False, True], {"a": 1.0}), TrainSequence([1], [False])],
            "sequence 1 has the fields",
        ),
    ],
)
def test_a_wrong_sequence_is_named(rows: list[TrainSequence], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(rows)


def test_an_unknown_field_names_the_given_ones() -> None:
    batch = LossBatch(torch.zeros(0), 0, {"b": torch.zeros(0), "a": torch.zeros(0)})
    with pytest.raises(KeyError, match=r"no field 'c' \(it gives: a, b\)"):
        batch.field("c")
