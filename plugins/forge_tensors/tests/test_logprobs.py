"""Chunked logprobs and entropies are those of the plain way, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from forge_core import OutputNeeds
from forge_tensors.logprobs import LogitShape, scores_of, token_logprobs

SHAPES = [LogitShape(), LogitShape(temperature=0.7), LogitShape(0.5, 3.0, 0.7)]
ENTROPY = OutputNeeds(entropy=True)
ROW = 4 * 37  # bytes of one token's logits at the vocabulary used here


def plain(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None,
    shape: LogitShape,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ weight.T * 1.0 if bias is None else hidden @ weight.T + bias
    logits = logits * shape.scale
    if shape.softcap is not None:
        logits = shape.softcap * torch.tanh(logits / shape.softcap)
    log_p = torch.log_softmax(
        logits.to(torch.promote_types(logits.dtype, torch.float32)) / shape.temperature, -1
    )
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(37, 8, generator=generator, dtype=torch.float64)
    bias = torch.randn(37, generator=generator, dtype=torch.float64)
    targets = torch.randint(37, (11,), generator=generator)
    leaves = [x.to(dtype).requires_grad_() for x in (hidden, weight, bias)]
    return *leaves, targets


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 11, 100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_in_float32(shape: LogitShape, rows: int, with_bias: bool) -> None:
    results = []
    for chunked in (True, False):
        hidden, weight, bias, targets = inputs(torch.float32)
        given = bias if with_bias else None
        if chunked:
            scores = token_logprobs(
                hidden,
                weight,
                targets,
                bias=given,
                shape=shape,
                needs=ENTROPY,
                most_bytes=rows * ROW,
            )
            logprobs, entropy = scores.logprobs, scores.entropy
            assert entropy is not None
        else:
            logprobs, entropy = plain(hidden, weight, targets, given, shape)
        (logprobs.exp().sum() + 0.3 * entropy.square().sum()).backward()
        leaves = (hidden, weight, bias) if with_bias else (hidden, weight)
        results.append([logprobs, entropy, *(leaf.grad for leaf in leaves)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("part", [0, 1, None])
def test_gradients_against_finite_differences(
    shape: LogitShape, rows: int, part: int | None
) -> None:
    *leaves, targets = inputs()

    def function(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> object:
        outputs = token_logprobs(
            hidden,
            weight,
            targets,
            bias=bias,
            shape=shape,
            needs=ENTROPY,
            most_bytes=rows * ROW,
        )
        return outputs[:2] if part is None else outputs[part]

    check: Callable[..., bool] = torch.autograd.gradcheck
    assert check(function, leaves)


def test_no_temporary_is_as_large_as_the_logits() -> None:
    hidden = torch.randn(512, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    targets = torch.randint(1000, (512,))
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            outputs = result if isinstance(result, tuple) else (result,)
            sizes.extend(x.numel() for x in outputs if isinstance(x, torch.Tensor))
            return result

    with Watch():
        scores = token_logprobs(hidden, weight, targets, needs=ENTROPY, most_bytes=32 * 4000)
        scores.logprobs.sum().backward()
    assert max(sizes) <= 32 * 1000


def test_bfloat16_adds_gradients_up_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4096, 8, generator=generator).bfloat16()
    weight = torch.randn(37, 8, generator=generator).bfloat16()
    targets = torch.randint(37, (4096,), generator=generator)
    gradients = []
    for dtype, rows in ((torch.float32, 4096), (torch.bfloat16, 4096), (torch.bfloat16, 16)):
        leaf = weight.to(dtype, copy=True).requires_grad_()
        scores = token_logprobs(hidden.to(dtype), leaf, targets, most_bytes=rows * ROW)
        logprobs = scores.logprobs
        assert logprobs.dtype == torch.float32
        logprobs.sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.dtype == dtype
        gradients.append(leaf.grad.float())
    exact = gradients[0]
    for rough in gradients[1:]:
        assert float((rough - exact).norm() / exact.norm()) < 0.01


def test_autocast_computes_the_product_in_its_type() -> None:
    hidden, weight, _, targets = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs = token_logprobs(hidden, weight, targets).logprobs
    logprobs.sum().backward()
    expected = plain(hidden.bfloat16(), weight.bfloat16(), targets, None, LogitShape())[0]
    assert torch.equal(logprobs, expected)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_only_the_entropy_may_be_differentiated() -> None:
    hidden, weight, _, targets = inputs()
    entropy = token_logprobs(hidden, weight, targets, needs=ENTROPY).entropy
    assert entropy is not None
    entropy.sum().backward()
    expected = inputs()
    plain(expected[0], expected[1], targets, None, LogitShape())[1].sum().backward()
    torch.testing.assert_close(hidden.grad, expected[0].grad)


EVERYTHING = OutputNeeds(entropy=True, top_logprobs=5, log_softmax=True, hidden_states=True)


def terms(log_softmax: torch.Tensor, tokens: slice | torch.Tensor) -> torch.Tensor:
    """Two numbers for each token, of which one depends on which token it is."""
    places = torch.arange(100, dtype=log_softmax.dtype)[tokens]
    return torch.stack([log_softmax.exp().square().sum(-1), log_softmax[:, 3] * places], -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 11, 100])
def test_everything_else_against_a_plain_reference_in_float64(shape: LogitShape, rows: int) -> None:
    results: list[list[torch.Tensor]] = []
    for chunked in (True, False):
        hidden, weight, bias, targets = inputs()
        if chunked:
            scores = token_logprobs(
                hidden,
                weight,
                targets,
                bias=bias,
                shape=shape,
                needs=EVERYTHING,
                terms=terms,
                most_bytes=rows * ROW,
            )
        else:
            logits = (hidden @ weight.T + bias) * shape.scale
            if shape.softcap is not None:
                logits = shape.softcap * torch.tanh(logits / shape.softcap)
            log_p = (logits / shape.temperature).log_softmax(-1)
            scores = scores_of(log_p, targets, EVERYTHING, terms, slice(0, 11))
            scores = scores._replace(hidden_states=hidden)
        logprobs, entropy, top_tokens, top, made, below, _ = scores
        assert entropy is not None
        assert top_tokens is not None
        assert top is not None
        assert made is not None
        assert below is not None
        assert top.shape == top_tokens.shape == (11, 5)
        weights = torch.arange(1.0, 6.0, dtype=torch.float64)
        total = logprobs.exp().sum() + entropy.square().sum() + (top.exp() * weights).sum()
        total = total + (made * made).sum() + below.square().sum()
        total.backward()
        results.append([*scores[:6], *(leaf.grad for leaf in (hidden, weight, bias))])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_only_what_is_asked_for_is_made() -> None:
    """The head is applied once forward and, where chunks were dropped, once more backward."""
    hidden, weight, _, targets = inputs()
    products: list[object] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func in (torch.ops.aten.mm.default, torch.ops.aten.topk.default):
                products.append(func)
            return func(*args, **(kwargs or {}))

    counts = {}
    for needs in (OutputNeeds(), EVERYTHING):
        products.clear()
        with Watch():
            scores = token_logprobs(
                hidden,
                weight,
                targets,
                needs=needs,
                terms=terms if needs.log_softmax else None,
                most_bytes=4 * ROW,
            )
        counts[needs] = len(products)
        assert (scores.top_logprobs is None) == (needs == OutputNeeds())
        assert (scores.terms is None) == (scores.entropy is None) == (needs == OutputNeeds())
        given = scores.outputs().given
        assert given.keys() == (needs.names - {"log_softmax"}) | ({"terms"} & {*given})
    assert counts[OutputNeeds()] == 3  # one product for each chunk
    assert counts[EVERYTHING] == 3 + 3  # and the choice of the most probable


def test_terms_need_no_more_than_chunks() -> None:
    hidden = torch.randn(512, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    targets = torch.randint(1000, (512,))
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            outputs = result if isinstance(result, tuple) else (result,)
            sizes.extend(x.numel() for x in outputs if isinstance(x, torch.Tensor))
            return result

    def spread(log_softmax: torch.Tensor, tokens: slice | torch.Tensor) -> torch.Tensor:
        return log_softmax.exp().square().sum(-1)

    with Watch():
        scores = token_logprobs(
            hidden,
            weight,
            targets,
            needs=OutputNeeds(top_logprobs=8, log_softmax=True),
            terms=spread,
            most_bytes=32 * 4000,
        )
        assert scores.terms is not None
        assert scores.top_logprobs is not None
        (scores.terms.sum() + scores.top_logprobs.sum()).backward()
    assert max(sizes) <= 32 * 1000


def test_of_no_token_there_is_nothing_of_the_right_shape() -> None:
    hidden, weight, _, targets = inputs()
    scores = token_logprobs(hidden[:0], weight, targets[:0], needs=EVERYTHING, terms=terms)
    shapes = [tuple(each.shape) for each in scores if each is not None]
    assert shapes == [(0,), (0,), (0, 5), (0, 5), (0, 2), (0, 8)]
