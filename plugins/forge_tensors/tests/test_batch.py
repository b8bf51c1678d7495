"""Packing keeps every token, and says what is wrong with a sequence."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core import LossBatch, TrainSequence, UsageError
from forge_tensors.batch import pack
from forge_tensors.units import units


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
        (
            [TrainSequence([1, 2], [False, True], {"a": 1.0}), TrainSequence([1], [False])],
            "sequence 1 has the fields",
        ),
    ],
)
def test_a_wrong_sequence_is_named(rows: list[TrainSequence], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(rows)


@pytest.mark.parametrize(
    ("tokens", "mask", "fields", "message"),
    [
        ([1, 2], [False], {}, "loss_mask has 1 entries for 2 tokens"),
        ([1, 2.5], [False, True], {}, "tokens holds numbers of type float64; only whole numbers"),
        ([1, 2**40], [False, True], {}, "tokens holds a number that does not fit 32 bits"),
        (np.ones((2, 1)), [False, True], {}, "tokens has 2 dimensions"),
        ([[1], [2, 3]], [False, True], {}, "tokens is not a row of numbers"),
        ("12", [False, True], {}, "tokens is a str; a list, array or tensor is allowed"),
        ([1, 2], [0, 2], {}, "loss_mask holds numbers other than 0 and 1"),
        ([1, 2], ["", "x"], {}, "loss_mask holds a str; only True and False are allowed"),
        ([1, 2], [False, True], {"a": [1.0]}, "field 'a' has 1 numbers for 2 tokens"),
        ([1, 2], [False, True], {"a": torch.ones(3)}, "field 'a' has 3 numbers for 2 tokens"),
        ([1, 2], [False, True], {"a": np.ones((2, 1))}, "field 'a' has 2 dimensions"),
        ([1, 2], [False, True], {"a": [1.0, None]}, "field 'a' holds a NoneType"),
        ([1, 2], [False, True], {"a": ["x", "y"]}, "field 'a' holds a str; only numbers"),
        ([1, 2], [False, True], {"a": np.array(["x", "y"])}, "field 'a' holds a str"),
        ([1, 2], [False, True], {"a": "12"}, "field 'a' is a str; a number or"),
        ([1, 2], [False, True], {"a": {0, 1}}, "field 'a' is a set; a number"),
        ([1, 2], [False, True], {"a": None}, "field 'a' is a NoneType; a number"),
    ],
)
def test_what_is_no_row_of_numbers_is_refused_by_name(
    tokens: Any, mask: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TrainSequence(tokens, mask, fields)


AS = {
    "numpy": np.array,
    "float64": lambda values: (
        np.array(values, dtype=np.float64) if type(values[0]) is float else values
    ),
    "tensor": torch.tensor,
    "tensor with a gradient": lambda values: (
        torch.tensor(values, requires_grad=True) if type(values[0]) is float else values
    ),
    "bfloat16": lambda values: (
        torch.tensor(values, dtype=torch.bfloat16) if type(values[0]) is float else values
    ),
    "tuple": tuple,
    "list of numpy scalars": lambda values: list(np.array(values)),
    "list of tensors": lambda values: list(torch.tensor(values)),
}


@pytest.mark.parametrize("kind", AS)
def test_arrays_and_tensors_are_taken_like_lists(kind: str) -> None:
    # As many tokens as trained ones in the batch: a wrong broadcast would not show in a shape.
    lists = [
        TrainSequence([1, 2, 3], [False, True, True], {"a": [1.0, 2.0, 3.0], "b": 0.5}),
        TrainSequence([4, 5], [False, True], {"a": [4.0, 5.0], "b": 1.5}),
    ]
    make = AS[kind]
    scalar = make([0.5])[0]
    arrays = [
        TrainSequence(
            make(row.tokens.tolist()),
            make(row.loss_mask.tolist()),
            {"a": make(row.fields["a"].tolist()), "b": row.fields["b"]},
        )
        for row in lists
    ]
    arrays[0] = TrainSequence(
        arrays[0].tokens, arrays[0].loss_mask, {"a": arrays[0].fields["a"], "b": scalar}
    )
    expected, batch = pack(lists), pack(arrays)
    for name in ("tokens", "positions", "targets"):
        assert torch.equal(getattr(batch, name), getattr(expected, name))
    for name in ("a", "b"):
        assert torch.equal(batch.loss_batch.field(name), expected.loss_batch.field(name))


def test_an_unknown_field_names_the_given_ones() -> None:
    batch = LossBatch(torch.zeros(0), 0, {"b": torch.zeros(0), "a": torch.zeros(0)})
    with pytest.raises(UsageError, match=r"'c', which the recipe does not give \(it gives: a, b\)"):
        batch.field("c")


def test_some_sequences_are_a_batch_of_their_own() -> None:
    sequences = [
        TrainSequence([5, 6, 7], [False, True, True], {"advantages": [0.0, 1.0, 2.0]}),
        TrainSequence([8], [False], {"advantages": [3.0]}),
        TrainSequence([9, 10], [False, True], {"advantages": [0.0, 4.0]}),
    ]
    batch = pack(sequences)
    for chosen, trained in (([2], [2]), ([2, 0], [2, 0, 1]), ([1], []), ([0, 1, 2], [0, 1, 2])):
        part, which = batch.select(chosen)
        expected = pack([sequences[index] for index in chosen])
        assert which.tolist() == trained
        assert part.lengths == expected.lengths
        for name in ("tokens", "positions", "targets"):
            assert torch.equal(getattr(part, name), getattr(expected, name))
        assert torch.equal(part.loss_batch.sequence, expected.loss_batch.sequence)
        assert part.loss_batch.num_sequences == len(chosen)
        advantages = part.loss_batch.field("advantages")
        assert torch.equal(advantages, expected.loss_batch.field("advantages"))


def test_sequences_of_a_group_share_a_number_and_the_others_have_their_own() -> None:
    def sequence(group: int | None) -> TrainSequence:
        return TrainSequence([1, 2], [False, True], group=group)

    batch = pack([sequence(group) for group in (7, None, 3, 7, None, 3)]).loss_batch
    assert batch.group is not None
    assert (batch.group.tolist(), batch.num_groups) == ([0, 1, 2, 0, 3, 2], 4)
    assert pack([sequence(None)]).loss_batch.group is None


def test_units_are_groups_and_sequences_that_stand_alone() -> None:
    rows = [TrainSequence([1], [False], group=group) for group in (5, None, 5, None, 2)]
    assert units([rows, rows[1:2]]) == [[[0, 2], [1], [3], [4]], [[5]]]
    with pytest.raises(UsageError, match="group 5 are in micro-batches 1 and 2"):
        units([rows[:2], rows[2:]])


def test_a_sequence_travels_as_it_is() -> None:
    row = TrainSequence([1, 2], [False, True], {"a": 0.5, "b": [1.0, float("nan")]}, group=4)
    for protocol in (4, 5):
        again = pickle.loads(pickle.dumps(row, protocol))
        assert again.fields.keys() == row.fields.keys()
        assert again.fields["b"].tobytes() == np.float32([1.0, float("nan")]).tobytes()
        assert replace(again, fields={}) == replace(row, fields={})
        assert (again.group, again.tokens.dtype, again.loss_mask.dtype) == (4, np.int32, np.bool_)
