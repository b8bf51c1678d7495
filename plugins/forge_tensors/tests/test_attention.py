"""Packed attention is the attention of each sequence by itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tensors.attention import packed_attention, plan
from forge_tensors.rows import gather_rows

HEADS, KEY_HEADS, SIZE = 4, 2, 8


def _random(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    shape = (1, sum(lengths), HEADS, SIZE)
    rows = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    rows = [rows[0], rows[1][:, :, :KEY_HEADS], rows[2][:, :, :KEY_HEADS]]
    return [x.transpose(1, 2).detach().requires_grad_() for x in rows]


def _alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    outputs, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        start += length
        keys, values = (x[0, :, part].repeat_interleave(2, dim=0) for x in (k, v))
        scores = q[0, :, part] @ keys.transpose(1, 2) / SIZE**0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append((weights @ values).transpose(0, 1))
    return torch.cat(outputs)[None]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_values_and_gradients_are_those_of_each_sequence_alone(lengths: list[int]) -> None:
    layout = plan(lengths)
    assert int(layout.groups[:, 0].sum()) == len(lengths)
    packed, alone = _random(lengths), _random(lengths)
    actual, _ = packed_attention(torch.nn.Identity(), *packed, None, packed_layout=layout)
    expected = _alone(*alone, lengths)
    torch.testing.assert_close(actual, expected)
    (actual.square().sum()).backward()
    (expected.square().sum()).backward()
    for ours, theirs in zip(packed, alone, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_padding_stays_small() -> None:
    lengths = [500, 490, 480, 400, 100, 90, 30, 20, 10, 5, 2, 1]
    layout = plan(lengths)
    assert layout.groups.tolist() == [[4, 500], [2, 100], [6, 30]]
    assert plan([7, 7, 7]).slots is None


def test_nothing_leaks_from_one_sequence_to_another() -> None:
    lengths = [5, 9, 3]
    tensors = _random(lengths)
    before, _ = packed_attention(torch.nn.Identity(), *tensors, None, packed_layout=plan(lengths))
    changed = [x.detach().clone() for x in tensors]
    for x in changed:
        x[:, :, 5:14] = float("nan")
    after, _ = packed_attention(torch.nn.Identity(), *changed, None, packed_layout=plan(lengths))
    assert torch.equal(before[:, :5], after[:, :5])
    assert torch.equal(before[:, 14:], after[:, 14:])
    assert after[:, 5:14].isnan().all()


@pytest.mark.parametrize("asked", [{"sliding_window": 4}, {"softcap": 30.0}, {"s_aux": 1}])
def test_what_it_cannot_do_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(NotImplementedError, match=next(iter(asked))):
        packed_attention(torch.nn.Identity(), *_random([3]), None, packed_layout=plan([3]), **asked)
    with pytest.raises(NotImplementedError, match="does not hand"):
        packed_attention(torch.nn.Identity(), *_random([3]), None)


def test_gather_rows_is_indexing() -> None:
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([4, 0, 5])
    assert torch.equal(gather_rows(x, rows), x[rows])
    assert torch.autograd.gradcheck(lambda x: gather_rows(x, rows).square(), (x,))


def test_autocast_attends_in_its_type() -> None:
    """Under autocast q and k arrive in float32 and v in bfloat16."""
    q, k, v = (x.detach().float() for x in _random([5, 9]))
    layout = plan([5, 9])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = packed_attention(
            torch.nn.Identity(), q, k, v.bfloat16(), None, packed_layout=layout
        )
    assert output.dtype == torch.bfloat16
    low = (x.bfloat16() for x in (q, k, v))
    expected, _ = packed_attention(torch.nn.Identity(), *low, None, packed_layout=layout)
    assert torch.equal(output, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_variable_length_kernel_agrees() -> None:
    lengths = [17, 64, 3, 64]
    exact = _random(lengths)
    assert plan(lengths, "cuda").variable_length
    expected, _ = packed_attention(torch.nn.Identity(), *exact, None, packed_layout=plan(lengths))
    half = [x.detach().cuda().bfloat16() for x in exact]
    layout = plan(lengths, "cuda")
    actual, _ = packed_attention(torch.nn.Identity(), *half, None, packed_layout=layout)
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=0.05, atol=0.02)
