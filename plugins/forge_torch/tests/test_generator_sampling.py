"""Sampling alone: distributions, restriction, streams."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core import Sampling
from forge_torch.generator.sampling import BatchSampler, inverse_cdf, restrict, uniform_stream

CPU = torch.device("cpu")
LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


def one(logits: list[float], sampling: Sampling, uniform: float) -> tuple[int, float]:
    tokens, logprobs = BatchSampler([sampling], CPU)(
        torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64)
    )
    return int(tokens[0]), float(logprobs[0])


def kept_by_definition(logits: list[float], top_k: int, top_p: float) -> list[int]:
    """Ids in order of probability: the first k, then the smallest set that reaches p."""
    probabilities = torch.tensor(logits).double().softmax(-1).tolist()
    ranked = sorted(range(len(logits)), key=lambda token: -probabilities[token])
    ranked = ranked[: top_k or None]
    whole = sum(probabilities[token] for token in ranked)
    reached = 0.0
    for count, token in enumerate(ranked):
        if reached >= top_p:
            return ranked[:count]
        reached += probabilities[token] / whole
    return ranked


@given(LOGITS, st.integers(0, 14), st.floats(0.05, 1.0))
@settings(max_examples=200, deadline=None)
def test_restrict_keeps_what_the_definition_keeps(
    logits: list[float], top_k: int, top_p: float
) -> None:
    logprobs = torch.tensor([logits]).log_softmax(-1)
    result = restrict(logprobs, torch.tensor([top_k]), torch.tensor([top_p]).double())[0]
    kept = set(torch.isfinite(result).nonzero().flatten().tolist())
    # A tie, or a sum that meets p but for rounding, may go either way by one token.
    lower = set(kept_by_definition(logits, top_k, top_p - 1e-5))
    upper = set(kept_by_definition(logits, top_k, top_p + 1e-5))
    assert len(lower) <= len(kept) <= len(upper)
    weakest = min(logits[token] for token in kept)
    assert all(token in kept for token, logit in enumerate(logits) if logit > weakest + 1e-3)
    assert float(result.double().exp().sum()) == pytest.approx(1, abs=1e-5)
    ratio = result[list(kept)] - logprobs[0][list(kept)]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio), atol=1e-4)


@given(LOGITS, st.floats(0, 1, exclude_max=True), st.floats(0.1, 5), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_a_sampled_token_has_probability_and_reports_it(
    logits: list[float], uniform: float, temperature: float, top_k: int
) -> None:
    token, logprob = one(logits, Sampling(temperature=temperature, top_k=top_k), uniform)
    scaled = torch.tensor(logits).double() / temperature
    kept = scaled.topk(min(top_k or len(logits), len(logits))).values
    assert logprob == pytest.approx(float(scaled[token] - kept.logsumexp(-1)), abs=1e-4)


@pytest.mark.parametrize(
    "uniforms", [[0.0, 0.24, 0.2500001, 0.74, 0.7500001, math.nextafter(1.0, 0.0)]]
)
def test_inverse_cdf_walks_up_the_cumulative_sum(uniforms: list[float]) -> None:
    probabilities = torch.tensor([0.0, 0.25, 0.5, 0.0, 0.25, 0.0])
    logprobs = probabilities.log().expand(len(uniforms), -1)
    tokens = inverse_cdf(logprobs, torch.tensor(uniforms, dtype=torch.float64))
    assert tokens.tolist() == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.5), Sampling(top_p=0.8), Sampling(top_k=3, temperature=2)],
)
def test_frequencies_pass_a_chi_square_test(sampling: Sampling) -> None:
    draws = 20_000
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5, -3.0])
    uniforms = uniform_stream(0, 0)
    numbers = torch.tensor([uniforms.random() for _ in range(draws)], dtype=torch.float64)
    tokens, logprobs = BatchSampler([sampling] * draws, CPU)(logits.expand(draws, -1), numbers)
    counts = torch.bincount(tokens, minlength=6).double()
    expected = torch.zeros(6).double().index_put((tokens,), logprobs.double().exp()) * draws
    drawn = expected > 0
    assert float(expected.sum()) == pytest.approx(draws, rel=1e-3)
    statistic = float(((counts - expected)[drawn] ** 2 / expected[drawn]).sum())
    assert statistic < 25.7  # 1 in 10,000 at 5 degrees of freedom


def test_rows_of_one_batch_keep_to_their_own_sampling() -> None:
    samplings = [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(temperature=0.5, top_k=2),
        Sampling(top_p=0.5),
        Sampling(temperature=0.0, top_k=1, top_p=0.1),
    ]
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    uniforms = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    tokens, logprobs = BatchSampler(samplings, CPU)(logits, uniforms)
    for row, sampling in enumerate(samplings):
        alone = one(logits[row].tolist(), sampling, float(uniforms[row]))
        assert (int(tokens[row]), float(logprobs[row])) == pytest.approx(alone)
    # Greedy reports the raw distribution at temperature 1, whatever else was asked for.
    raw = logits.log_softmax(-1)
    for row in (1, 4):
        assert int(tokens[row]) == int(logits[row].argmax())
        assert float(logprobs[row]) == pytest.approx(float(raw[row].max()))


def test_sampling_leaves_the_logits_alone() -> None:
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    sampler = BatchSampler([Sampling(temperature=0.3, top_p=0.5)] * 2, CPU)
    sampler(logits, torch.tensor([0.1, 0.9], dtype=torch.float64))
    assert torch.equal(logits, before)


def test_streams_depend_on_seed_and_index_alone() -> None:
    def first(seed: int | None, index: int) -> float:
        return uniform_stream(seed, index).random()

    assert first(3, 1) == first(3, 1)
    assert len({first(seed, index) for seed in range(10) for index in range(10)}) == 100
    assert first(None, 0) != first(None, 0)
