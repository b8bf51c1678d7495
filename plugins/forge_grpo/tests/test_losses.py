"""The losses against the papers' formulas, written out again for padded batches in float64.

Nothing here is shared with the losses but their inputs: the oracles pad rows to a common length and
use a mask, as the papers do; the losses see a flat row of trained tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_core import Loss, LossBatch, LossOutput, ModelOutputs, Selection, TrainSequence
from forge_grpo.losses.grpo import Grpo
from forge_grpo.losses.gspo import Gspo
from forge_grpo.losses.primitives import kl_k3
from forge_grpo.losses.reinforce import Reinforce
from forge_grpo.plugin import forge_losses
from forge_grpo.settings import GrpoLossSettings, GspoSettings, ReinforceSettings
from forge_tensors.batch import pack
from forge_testing.conformance.loss import LossConformance

# The contract of losses.


def selected(name: str, **settings: Any) -> Selection[Loss]:
    """A loss of this package, as a config selects it."""
    (component,) = (each for each in forge_losses() if each.name == name)
    return Selection(family="loss", component=component, settings=component.settings(**settings))


class TestGrpo(LossConformance):
    @pytest.fixture(
        params=[
            {},
            {"aggregate": "sequences"},
            {"clip_low": 0.1, "clip_high": 0.3},
            {"kl_coef": 0.1, "entropy_coef": 0.01},
            {"kl_coef": 0.1, "entropy_coef": 0.01, "aggregate": "sequences"},
        ],
        ids=str,
    )
    def selection(self, request: pytest.FixtureRequest) -> Selection[Loss]:
        return selected("grpo", **request.param)


class TestGspo(LossConformance):
    @pytest.fixture(params=[{}, {"clip_low": 0.2, "clip_high": 0.3}], ids=str)
    def selection(self, request: pytest.FixtureRequest) -> Selection[Loss]:
        return selected("gspo", **request.param)


class TestReinforce(LossConformance):
    @pytest.fixture(params=["tokens", "sequences"])
    def selection(self, request: pytest.FixtureRequest) -> Selection[Loss]:
        return selected("reinforce", aggregate=request.param)


# Oracles.


@dataclass(frozen=True)
class Padded:
    """B sequences padded to length L. All [B, L] but the advantages [B]; float64."""

    mask: torch.Tensor
    new: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor
    entropy: torch.Tensor
    advantages: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        return self.mask.sum(dim=1)


def random_batch(lengths: Sequence[int], seed: int, drift: float = 0.3) -> Padded:
    """Logprobs of three policies that have drifted apart; what is under the padding is poison."""
    generator = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn(len(lengths), max(lengths), generator=generator, dtype=torch.float64)

    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    new = -noise().abs() - 0.1
    poison = torch.full_like(new, 1e6)

    def kept(values: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, values, poison)

    return Padded(
        mask=mask,
        new=kept(new).requires_grad_(),
        old=kept(new - drift * noise()),
        reference=kept(new - drift * noise()),
        entropy=kept(noise().abs()).requires_grad_(),
        advantages=noise()[:, 0],
    )


def flat(batch: Padded) -> tuple[torch.Tensor, LossBatch, torch.Tensor]:
    """The same as a loss sees it."""
    mask = batch.mask
    owner = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    fields = {
        "advantages": batch.advantages[:, None].expand_as(mask)[mask],
        "sampler_logprobs": batch.old[mask],
        "reference_logprobs": batch.reference[mask],
    }
    return batch.new[mask], LossBatch(owner, len(mask), fields), batch.entropy[mask]


def grpo_token_objective(
    batch: Padded, low: float, high: float, beta: float, entropy_coef: float = 0.0
) -> torch.Tensor:
    """What stands inside the sums of GRPO's eq. 3, with DAPO's two clip ranges. [B, L]"""
    new = torch.where(batch.mask, batch.new, 0.0)
    old = torch.where(batch.mask, batch.old, 0.0)
    reference = torch.where(batch.mask, batch.reference, 0.0)
    advantages = batch.advantages[:, None]
    ratio = new.exp() / old.exp()
    clipped = torch.where(ratio > 1 + high, 1 + high, torch.where(ratio < 1 - low, 1 - low, ratio))
    surrogate = torch.where(
        ratio * advantages < clipped * advantages, ratio * advantages, clipped * advantages
    )
    # eq. 4: pi_ref / pi - log(pi_ref / pi) - 1
    kl = reference.exp() / new.exp() - (reference.exp() / new.exp()).log() - 1
    entropy = torch.where(batch.mask, batch.entropy, 0.0)
    return (surrogate - beta * kl + entropy_coef * entropy) * batch.mask


def grpo_eq_3(batch: Padded, **settings: float) -> torch.Tensor:
    """Mean over sequences of the mean over their tokens."""
    return (grpo_token_objective(batch, **settings).sum(dim=1) / batch.lengths).mean()


def dapo_eq_8(batch: Padded, **settings: float) -> torch.Tensor:
    """Mean over all tokens of the batch."""
    return grpo_token_objective(batch, **settings).sum() / batch.lengths.sum()


def gspo_eq_5(batch: Padded, low: float, high: float) -> torch.Tensor:
    """Mean over sequences of min(s A, clip(s) A), s = (pi(y) / pi_old(y)) ** (1 / |y|) (eq. 7)."""
    objectives = []
    for row in range(len(batch.mask)):
        kept = batch.mask[row]
        likelihood = batch.new[row][kept].exp().prod() / batch.old[row][kept].exp().prod()
        s = likelihood ** (1 / int(kept.sum()))
        advantage = batch.advantages[row]
        objectives.append(torch.minimum(s * advantage, s.clamp(1 - low, 1 + high) * advantage))
    return torch.stack(objectives).mean()


def gradients(value: torch.Tensor, batch: Padded) -> tuple[torch.Tensor, torch.Tensor]:
    new, entropy = torch.autograd.grad(
        value, [batch.new, batch.entropy], allow_unused=True, retain_graph=True
    )
    return new, torch.zeros_like(batch.entropy) if entropy is None else entropy


def assert_maximizes(loss: Loss, batch: Padded, objective: torch.Tensor) -> LossOutput:
    """The loss's mean is minus the objective, in value and gradient."""
    logprobs, loss_batch, entropy = flat(batch)
    uses_entropy = isinstance(loss, Grpo) and loss.settings.entropy_coef > 0
    output = loss(logprobs, loss_batch, ModelOutputs({"entropy": entropy} if uses_entropy else {}))
    mean = output.sum / output.count
    torch.testing.assert_close(mean, -objective, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(gradients(mean, batch), gradients(-objective, batch), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)
    return output


LENGTHS = [5, 1, 8, 3, 8, 2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.0, 0.0)])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_grpo_by_sequences_is_eq_3(seed: int, low: float, high: float, beta: float) -> None:
    loss = Grpo(GrpoLossSettings(clip_low=low, clip_high=high, kl_coef=beta, aggregate="sequences"))
    batch = random_batch(LENGTHS, seed)
    assert_maximizes(loss, batch, grpo_eq_3(batch, low=low, high=high, beta=beta))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_grpo_by_tokens_is_dapo(seed: int, entropy_coef: float) -> None:
    loss = Grpo(
        GrpoLossSettings(clip_low=0.2, clip_high=0.28, kl_coef=0.04, entropy_coef=entropy_coef)
    )
    batch = random_batch(LENGTHS, seed)
    assert_maximizes(
        loss, batch, dapo_eq_8(batch, low=0.2, high=0.28, beta=0.04, entropy_coef=entropy_coef)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.1, 0.2)])
def test_gspo_is_eq_5(seed: int, low: float, high: float) -> None:
    batch = random_batch(LENGTHS, seed, drift=0.2)
    loss = Gspo(GspoSettings(clip_low=low, clip_high=high))
    assert_maximizes(loss, batch, gspo_eq_5(batch, low, high))


def test_reinforce_is_the_policy_gradient() -> None:
    batch = random_batch(LENGTHS, 0)
    weighted = torch.where(batch.mask, batch.new, 0.0) * batch.advantages[:, None] * batch.mask
    assert_maximizes(Reinforce(ReinforceSettings()), batch, weighted.sum() / batch.lengths.sum())
    assert_maximizes(
        Reinforce(ReinforceSettings(aggregate="sequences")),
        batch,
        (weighted.sum(dim=1) / batch.lengths).mean(),
    )


# Identities.


def on_policy(batch: Padded) -> Padded:
    old = batch.new.detach().clone()
    return Padded(batch.mask, batch.new, old, old, batch.entropy, batch.advantages)


@pytest.mark.parametrize("aggregate", ["tokens", "sequences"])
def test_on_policy_grpo_has_the_gradient_of_reinforce(aggregate: str) -> None:
    batch = on_policy(random_batch(LENGTHS, 1))
    logprobs, loss_batch, _ = flat(batch)
    # The KL to a reference that the policy still equals has no gradient either.
    clipped = Grpo(GrpoLossSettings.model_validate({"aggregate": aggregate, "kl_coef": 0.5}))
    plain = Reinforce(ReinforceSettings.model_validate({"aggregate": aggregate}))
    ours = gradients(clipped(logprobs, loss_batch, ModelOutputs()).sum, batch)[0]
    theirs = gradients(plain(logprobs, loss_batch, ModelOutputs()).sum, batch)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_on_policy_gspo_has_the_gradient_of_reinforce_by_sequences() -> None:
    batch = on_policy(random_batch(LENGTHS, 2))
    logprobs, loss_batch, _ = flat(batch)
    gspo = Gspo(GspoSettings())(logprobs, loss_batch, ModelOutputs())
    reinforce = Reinforce(ReinforceSettings(aggregate="sequences"))(
        logprobs, loss_batch, ModelOutputs()
    )
    ours, theirs = gradients(gspo.sum, batch)[0], gradients(reinforce.sum, batch)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert gspo.count == float(reinforce.count)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.1, 2.0, 2.2, 2.0),  # inside the range: r A
        (1.5, 2.0, 2.6, 0.0),  # a good token is pushed no further than 1 + 0.3
        (0.5, 2.0, 1.0, 2.0),  # a good token that has become rare comes back
        (0.5, -2.0, -1.8, 0.0),  # a bad token is pushed no further than 1 - 0.1
        (1.5, -2.0, -3.0, -2.0),  # a bad token that has become frequent goes back
        (1.5, 0.0, 0.0, 0.0),
        (2.9, -2.0, -5.8, -2.0),
        (3.1, -2.0, -6.0, 0.0),  # beyond dual_clip the weight of a bad token grows no further
        (3.1, 2.0, 2.6, 0.0),
    ],
)
def test_the_clip_by_hand(ratio: float, advantage: float, objective: float, slope: float) -> None:
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    fields = {"advantages": torch.tensor([advantage], dtype=torch.float64), "sampler_logprobs": old}
    batch = LossBatch(torch.zeros(1, dtype=torch.int64), 1, fields)
    token = Grpo(GrpoLossSettings(clip_low=0.1, clip_high=0.3))
    sequence = Gspo(GspoSettings(clip_low=0.1, clip_high=0.3))
    for loss in (token, sequence):  # of one token, they are the same
        output = loss(new, batch, ModelOutputs())
        assert output.sum.item() == pytest.approx(-objective)
        (gradient,) = torch.autograd.grad(output.sum, new)
        assert gradient.item() == pytest.approx(-slope * ratio)  # d ratio / d logprob = ratio
        held, count = output.metrics["clip_fraction"]
        assert (float(held), count) == (float(slope == 0.0 != advantage), 1.0)
        assert float(output.metrics["ratio"][0]) == pytest.approx(ratio)
        assert float(output.maxima["ratio_max"]) == pytest.approx(ratio)


# Ratios far from 1.

RATIO_LOSSES: list[Callable[[float | None], Loss]] = [
    lambda dual_clip: Grpo(GrpoLossSettings(dual_clip=dual_clip)),
    lambda dual_clip: Grpo(GrpoLossSettings(dual_clip=dual_clip, aggregate="sequences")),
    lambda dual_clip: Gspo(GspoSettings(dual_clip=dual_clip)),
]


def far_apart(gap: float, advantage: float, tokens: int = 64) -> tuple[torch.Tensor, LossBatch]:
    """Sequences of one token each; the first token's log ratio is ``gap``, the others' is 0."""
    logprobs = torch.full((tokens,), -1.0).requires_grad_()
    sampler = logprobs.detach().clone()
    sampler[0] -= gap
    advantages = torch.ones(tokens)
    advantages[0] = advantage
    fields = {"advantages": advantages, "sampler_logprobs": sampler}
    return logprobs, LossBatch(torch.arange(tokens), tokens, fields)


@pytest.mark.parametrize("make", RATIO_LOSSES)
@pytest.mark.parametrize("gap", [92.0, -92.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("dual_clip", [3.0, None])
def test_no_gap_to_the_sampler_overflows(
    make: Callable[[float | None], Loss], gap: float, advantage: float, dual_clip: float | None
) -> None:
    logprobs, batch = far_apart(gap, advantage)
    output = make(dual_clip)(logprobs, batch, ModelOutputs())
    assert torch.isfinite(output.sum)
    (gradient,) = torch.autograd.grad(output.sum, logprobs)
    assert gradient.isfinite().all()
    assert gradient[0].abs() <= 1
    assert all(torch.isfinite(torch.as_tensor(total)) for total, _ in output.metrics.values())


@pytest.mark.parametrize("make", RATIO_LOSSES)
@pytest.mark.parametrize("gap", [2.0, 8.0, 12.0])
def test_one_bad_token_does_not_take_the_gradient_for_itself(
    make: Callable[[float | None], Loss], gap: float
) -> None:
    logprobs, batch = far_apart(gap, -1.0, tokens=4096)
    bounded, unbounded = (
        make(3.0)(logprobs, batch, ModelOutputs()),
        make(None)(logprobs, batch, ModelOutputs()),
    )
    (gradient,) = torch.autograd.grad(bounded.sum, logprobs)
    assert gradient[0].abs() <= 3 * gradient[1].abs()
    (without,) = torch.autograd.grad(unbounded.sum, logprobs)
    assert without[0].item() == pytest.approx(math.exp(gap), rel=1e-4)
    held, _ = bounded.metrics["clip_fraction"]
    assert float(held) == 1
    assert float(bounded.maxima["ratio_max"]) == pytest.approx(math.exp(gap), rel=1e-4)


@pytest.mark.parametrize("make", RATIO_LOSSES)
@pytest.mark.parametrize("which", ["policy", "sampler"])
@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_a_logprob_that_is_not_finite_is_not_hidden(
    make: Callable[[float | None], Loss], which: str, value: float
) -> None:
    logprobs, batch = far_apart(0.0, 1.0)
    with torch.no_grad():
        (logprobs if which == "policy" else batch.fields["sampler_logprobs"])[0] = value
    assert make(3.0)(logprobs, batch, ModelOutputs()).sum.isnan()


@pytest.mark.parametrize("difference", [92.0, 1e4])
def test_a_reference_far_away_does_not_overflow(difference: float) -> None:
    logprobs = torch.tensor([-difference, -1.0], requires_grad=True)
    kl = kl_k3(logprobs, torch.zeros(2))
    (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.isfinite().all()
    assert gradient.isfinite().all()


def test_a_policy_far_above_the_reference_is_still_pulled_back() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(kl_k3(logprobs, torch.tensor([-92.0])).sum(), logprobs)
    assert gradient.item() == pytest.approx(1)


@pytest.mark.parametrize(
    "loss",
    [
        Grpo(GrpoLossSettings(clip_low=0.999, clip_high=1e6, dual_clip=None)),
        Gspo(GspoSettings(clip_low=0.999, clip_high=1e6, dual_clip=None)),
    ],
)
def test_tokens_of_an_older_policy_give_the_gradient_of_the_current_one(loss: Loss) -> None:
    """Importance sampling: weighted by how likely the older one was to sample each token, the
    gradients add up to that of the expected advantage under the current policy."""
    generator = torch.Generator().manual_seed(0)
    logits, older, advantages = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    current, sampler = logits.log_softmax(0), older.log_softmax(0)
    (expected,) = torch.autograd.grad((current.exp() * advantages).sum(), logits, retain_graph=True)
    total = torch.zeros_like(expected)
    for token in range(12):
        fields = {"advantages": advantages[token : token + 1], "sampler_logprobs": sampler[token]}
        fields = {name: values.reshape(1) for name, values in fields.items()}
        batch = LossBatch(torch.zeros(1, dtype=torch.int64), 1, fields)
        output = loss(current[token : token + 1], batch, ModelOutputs())
        (slope,) = torch.autograd.grad(-output.sum, logits, retain_graph=True)
        total += sampler[token].exp() * slope
    torch.testing.assert_close(total, expected)


@given(
    policy=st.floats(-20, 0),
    difference=st.one_of(st.floats(-10, 10), st.floats(-1e-3, 1e-3), st.floats(-1e-6, 1e-6)),
)
def test_kl_is_never_negative(policy: float, difference: float) -> None:
    logprobs = torch.tensor([policy], dtype=torch.float32)
    kl = kl_k3(logprobs, logprobs + difference).item()
    assert kl >= 0


def test_kl_is_zero_only_where_the_policies_agree() -> None:
    logprobs = torch.tensor([-2.0, -0.5, -3.0])
    assert kl_k3(logprobs, logprobs).tolist() == [0.0, 0.0, 0.0]
    assert all(kl_k3(logprobs, logprobs + 0.5) > 0.1)


def test_the_gradient_of_k3_is_that_of_the_divergence_the_other_way_round() -> None:
    """On tokens of the policy: grad KL(reference || policy), not grad KL(policy || reference)."""
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    policy, reference = logits.log_softmax(0), other.log_softmax(0)
    expected_loss = (policy.detach().exp() * kl_k3(policy, reference)).sum()
    forward = (reference.exp() * (reference - policy)).sum()
    reverse = (policy.exp() * (policy - reference)).sum()
    ours, theirs, not_theirs = (
        torch.autograd.grad(value, logits, retain_graph=True)[0]
        for value in (expected_loss, forward, reverse)
    )
    torch.testing.assert_close(ours, theirs)
    assert torch.cosine_similarity(ours, not_theirs, dim=0) < 0.95


def test_the_value_of_k3_is_an_unbiased_estimate_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 12, generator=generator, dtype=torch.float64).log_softmax(1)
    # The expectation over tokens sampled from the policy, summed exactly.
    expected = (policy.exp() * kl_k3(policy, reference)).sum()
    torch.testing.assert_close(expected, (policy.exp() * (policy - reference)).sum())


def test_the_entropy_bonus_pays_for_entropy() -> None:
    batch = random_batch(LENGTHS, 3)
    logprobs, loss_batch, entropy = flat(batch)
    output = Grpo(GrpoLossSettings(entropy_coef=0.5))(
        logprobs, loss_batch, ModelOutputs({"entropy": entropy})
    )
    _, slope = gradients(output.sum, batch)
    assert torch.equal(slope[batch.mask], torch.full_like(entropy, -0.5))
    total, count = output.metrics["entropy"]
    assert float(total) / float(count) == pytest.approx(entropy.mean().item())


@pytest.mark.parametrize(
    "loss", [Grpo(GrpoLossSettings()), Grpo(GrpoLossSettings(aggregate="sequences"))]
)
def test_a_group_without_signal_has_no_gradient(loss: Loss) -> None:
    batch = random_batch(LENGTHS, 4)
    batch.advantages.zero_()
    logprobs, loss_batch, _ = flat(batch)
    assert (
        torch.count_nonzero(gradients(loss(logprobs, loss_batch, ModelOutputs()).sum, batch)[0])
        == 0
    )


# What a token is called does not matter: masks come from roles.

LOSSES: list[Callable[[], Loss]] = [
    lambda: Grpo(GrpoLossSettings(kl_coef=0.1)),
    lambda: Grpo(GrpoLossSettings(aggregate="sequences", kl_coef=0.1)),
    lambda: Gspo(GspoSettings()),
    lambda: Reinforce(ReinforceSettings()),
]


@pytest.mark.parametrize("make", LOSSES)
def test_a_sampled_end_token_is_trained_although_it_is_the_pad_token(
    make: Callable[[], Loss],
) -> None:
    eos = pad = 0

    def batch_with(last: int) -> LossOutput:
        rows = [
            TrainSequence(
                tokens=[5, pad, 7, pad, 8, last][: 4 + extra],
                loss_mask=[False, False, True, True, True, True][: 4 + extra],
                fields={
                    "advantages": 1.0 - extra,
                    "sampler_logprobs": [0.0, 0.0, -1.0, -2.0, -0.5, -0.7][: 4 + extra],
                    "reference_logprobs": [0.0, 0.0, -1.5, -2.0, -0.5, -0.6][: 4 + extra],
                },
            )
            for extra in (0, 2)
        ]
        packed = pack(rows)
        logprobs = torch.linspace(-2, -0.1, len(packed.targets), requires_grad=True)
        return make()(logprobs, packed.loss_batch, ModelOutputs())

    ended, cut = batch_with(eos), batch_with(9)
    assert ended.sum.item() == cut.sum.item()
    assert float(ended.count) == float(cut.count)
    assert float(ended.count) in (2.0, 6.0)  # sequences, or every sampled token
