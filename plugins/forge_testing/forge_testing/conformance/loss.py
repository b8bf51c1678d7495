"""What every loss must do. Inherit it, and say which loss in the ``selection`` fixture.

.. code-block:: python

    class TestMine(LossConformance):
        @pytest.fixture
        def selection(self):
            (component,) = forge_losses()
            return Selection(family="loss", component=component, settings=MineSettings())

A loss never sees padding, prompts or masks, so that there is nothing to get wrong about them; what
is left is that sums and counts add up, however a batch is split, ordered or filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import pytest
import torch

from forge_core import (
    ChunkedLoss,
    Loss,
    LossBatch,
    LossOutput,
    ModelOutputs,
    OutputNeeds,
    Selection,
    TopLogprobs,
    field_needs,
)
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context

LENGTHS = (3, 5, 1, 4)
"""Trained tokens of the sequences that the tests are made of."""

HIDDEN = 6
"""Width of the hidden states that the tests are made of."""

Tensors = Mapping[str, torch.Tensor]

T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """What a loss is called with, one item a sequence: easy to split and to reorder."""

    policy: Mapping[str, Sequence[torch.Tensor]]
    """Logprobs, and what else the loss needs of the policy; log-probabilities of the vocabulary for
    its ``terms``."""
    fields: Mapping[str, Sequence[torch.Tensor]]
    needs: OutputNeeds = field(default_factory=OutputNeeds)
    group: Sequence[int] | None = None
    sequences: int = len(LENGTHS)

    def pick(self, indices: Sequence[int]) -> Rows:
        """The same for some of the sequences, in that order."""
        return Rows(
            {name: _picked(rows, indices) for name, rows in self.policy.items()},
            {name: _picked(rows, indices) for name, rows in self.fields.items()},
            self.needs,
            None if self.group is None else [self.group[i] for i in indices],
            len(indices),
        )

    def whole(self, parts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The same parts, with every sequence in that of the first of its group."""
        group = range(self.sequences) if self.group is None else self.group
        order = dict.fromkeys(group[i] for part in parts for i in part)
        homes = {group[i]: number for number, part in reversed([*enumerate(parts)]) for i in part}
        members = {each: [i for i, own in enumerate(group) if own == each] for each in order}
        found = [
            [i for each in order if homes[each] == number for i in members[each]]
            for number in range(len(parts))
        ]
        return [part for part in found if part]


def _picked(rows: Sequence[torch.Tensor], indices: Sequence[int]) -> Sequence[torch.Tensor]:
    """Those of some sequences; of none, a tensor without tokens that is as wide."""
    return [rows[i] for i in indices] or [rows[0][:0]]


class LossConformance(Suite):
    """Inherit with a ``selection`` fixture; override ``field`` for fields of your own."""

    not_differentiated: str = ""
    """Why the gradient is meant to differ from that of the value (a stop-gradient, say): the
    comparison with finite differences is left out, with this reason."""

    groups: Sequence[int] = ()
    """For a loss that compares sequences: the group of each of ``LENGTHS``, such as (0, 0, 1, 1)
    for pairs. Batches are then split between groups only."""

    vocabulary: int = 11
    """Token ids of the distributions that a loss which needs ``log_softmax`` or ``top_logprobs`` is
    given."""

    @pytest.fixture
    def selection(self) -> Selection[Loss]:
        """The loss under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def loss(self, selection: Selection[Loss]) -> Loss:
        """The loss, built."""
        return built(selection, bare_context())

    def field(
        self, name: str, logprobs: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor | float:
        """Values of a field for one sequence, given its logprobs: [n], or one for all."""
        if name == "advantages":
            return float(torch.randn((), generator=generator))
        if name in ("sampler_logprobs", "reference_logprobs"):
            noise = torch.randn(logprobs.shape, generator=generator, dtype=torch.float64)
            return logprobs - 0.3 * noise
        if name == "versions":
            return 3.0
        return torch.rand(logprobs.shape, generator=generator, dtype=torch.float64) + 0.5

    @pytest.fixture
    def rows(self, selection: Selection[Loss]) -> Rows:
        """What the loss is called with."""
        return self.make_rows(selection.needs)

    def make_rows(self, needs: Set[str]) -> Rows:
        """Random sequences of ``LENGTHS`` trained tokens, in float64.

        Args:
            needs: of the loss.
        """
        generator = torch.Generator().manual_seed(0)

        def negative(length: int) -> torch.Tensor:
            return -3 * torch.rand(length, generator=generator, dtype=torch.float64) - 0.01

        logprobs = [negative(length) for length in LENGTHS]
        fields = {
            name: [_for_each(self.field(name, row, generator), len(row)) for row in logprobs]
            for name in sorted(field_needs(needs))
        }
        outputs = OutputNeeds.of(needs)
        policy = {"logprobs": logprobs}
        policy["entropy"] = [-negative(length) for length in LENGTHS]

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        if outputs.log_softmax:
            policy["log_softmax"] = [noise(n, self.vocabulary).log_softmax(-1) for n in LENGTHS]
        if outputs.top_logprobs:
            count = min(outputs.top_logprobs, self.vocabulary)
            top = [noise(n, self.vocabulary).log_softmax(-1).topk(count) for n in LENGTHS]
            policy["top_logprobs"] = [each.values for each in top]
            policy["top_tokens"] = [each.indices for each in top]
        if outputs.hidden_states:
            policy["hidden_states"] = [noise(n, HIDDEN) for n in LENGTHS]
        if outputs.values:
            policy["values"] = [noise(n) for n in LENGTHS]
        if not outputs.entropy:
            del policy["entropy"]
        return Rows(policy, fields, outputs, self.groups or None)

    def test_it_returns_a_sum_and_a_count(self, loss: Loss, rows: Rows) -> None:
        output, _ = _call(loss, rows)
        assert isinstance(output, LossOutput)
        assert output.sum.shape == ()
        assert output.sum.requires_grad
        assert torch.isfinite(output.sum)
        assert float(output.count) > 0
        for name, (total, count) in output.metrics.items():
            for value in (total, count):
                tensor = torch.as_tensor(value)
                assert tensor.numel() == 1, f"metric {name} is not a pair of scalars"
                assert not tensor.requires_grad, f"metric {name} is not detached"
        for name, value in output.maxima.items():
            tensor = torch.as_tensor(value)
            assert tensor.numel() == 1, f"maximum {name} is not a scalar"
            assert not tensor.requires_grad, f"maximum {name} is not detached"

    @pytest.mark.parametrize(
        "parts", [[[0, 1], [2, 3]], [[0], [1], [2], [3]], [[3, 1, 2], [0]]], ids=str
    )
    def test_any_split_adds_up_to_the_same(
        self, loss: Loss, rows: Rows, parts: list[list[int]]
    ) -> None:
        parts = rows.whole(parts)
        whole, gradients = _call(loss, rows)
        outputs = [_call(loss, rows.pick(part)) for part in parts]
        _equal(sum(output.sum for output, _ in outputs), whole.sum)
        _equal(sum(float(output.count) for output, _ in outputs), whole.count)
        order = [index for part in parts for index in part]
        for name, gradient in gradients.items():
            _equal(_reorder(torch.cat([each[name] for _, each in outputs]), order), gradient)
        assert all(output.metrics.keys() == whole.metrics.keys() for output, _ in outputs)
        for name, pair in whole.metrics.items():
            for which in (0, 1):
                total = sum(float(output.metrics[name][which]) for output, _ in outputs)
                _equal(total, pair[which])
        for name, value in whole.maxima.items():
            _equal(max(float(output.maxima[name]) for output, _ in outputs), value)

    def test_any_chunks_of_distributions_make_the_same_terms(self, loss: Loss, rows: Rows) -> None:
        if not rows.needs.log_softmax:
            pytest.skip("the loss needs no log_softmax")
        whole, gradients = _call(loss, rows)
        for size in (1, 4):
            output, same = _call(loss, rows, chunk=size)
            _equal(output.sum, whole.sum)
            for name, gradient in gradients.items():
                _equal(same[name], gradient)

    def test_the_order_of_sequences_does_not_matter(self, loss: Loss, rows: Rows) -> None:
        order = [2, 0, 3, 1]
        whole, gradients = _call(loss, rows)
        output, permuted = _call(loss, rows.pick(order))
        _equal(output.sum, whole.sum)
        _equal(output.count, whole.count)
        for name, gradient in gradients.items():
            _equal(_reorder(permuted[name], order), gradient)

    def test_a_sequence_without_trained_tokens_adds_nothing(self, loss: Loss, rows: Rows) -> None:
        whole, gradients = _call(loss, rows)
        output, same = _call(loss, rows, untrained=2)
        _equal(output.sum, whole.sum)
        for name, gradient in gradients.items():
            _equal(same[name], gradient)

    @pytest.mark.parametrize("untrained", [0, 2])
    def test_nothing_to_train_on_is_zero_and_not_nan(
        self, loss: Loss, rows: Rows, untrained: int
    ) -> None:
        output, gradients = _call(loss, rows.pick([]), untrained=untrained)
        assert float(output.sum.detach()) == 0
        assert float(output.count) >= 0
        assert not any(gradient.numel() for gradient in gradients.values())
        for total, count in output.metrics.values():
            assert torch.isfinite(torch.as_tensor(total))
            assert torch.isfinite(torch.as_tensor(count))
        assert not output.maxima, "there is no maximum of nothing"

    def test_the_gradient_is_that_of_the_value(self, loss: Loss, rows: Rows) -> None:
        if self.not_differentiated:
            pytest.skip(self.not_differentiated)
        batch = _batch(rows)
        policy = _policy(rows)
        leaves = {name: value for name, value in policy.items() if value.requires_grad}

        def value(*given: torch.Tensor) -> torch.Tensor:
            called = _called(loss, rows, policy | dict(zip(leaves, given, strict=True)), batch)
            # Each of them is in the graph, whatever the loss does with it.
            return called.sum + 0 * sum(each.sum() for each in given)

        assert torch.autograd.gradcheck(value, tuple(leaves.values()))

    def test_it_is_pure(self, loss: Loss, rows: Rows) -> None:
        batch = _batch(rows)
        kept = {name: values.clone() for name, values in batch.fields.items()}
        first, gradients = _call(loss, rows)
        second, again = _call(loss, rows)
        assert torch.equal(first.sum, second.sum)
        for name, gradient in gradients.items():
            assert torch.equal(gradient, again[name])
        policy = {name: value.detach() for name, value in _policy(rows).items()}
        before = {name: value.clone() for name, value in policy.items()}
        _called(loss, rows, policy, batch)
        for name, value in policy.items():
            assert torch.equal(value, before[name]), f"the loss wrote into {name}"
        for name, values in kept.items():
            assert torch.equal(batch.fields[name], values), f"the loss wrote into field {name}"

    def test_needs_is_what_it_uses(self, loss: Loss, rows: Rows) -> None:
        used: set[str] = set()
        batch = _batch(rows)
        spied = replace(batch, fields=_Spy(batch.fields, used))
        policy = _policy(rows)
        outputs = _outputs(loss, rows, policy, spied)
        read: set[str] = set()
        loss(policy["logprobs"], spied, ModelOutputs(_Spy(outputs.given, read)))
        assert used == rows.fields.keys(), "needs names other fields than the loss reads"
        unread = ", ".join(sorted(outputs.given.keys() - read))
        assert not unread, f"{unread} of the policy is needed and not used"

    def test_float32_is_close_to_float64(self, loss: Loss, rows: Rows) -> None:
        wide, gradients = _call(loss, rows)
        narrow, others = _call(loss, rows, dtype=torch.float32)
        torch.testing.assert_close(narrow.sum.double(), wide.sum, rtol=1e-4, atol=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name].double(), gradient, rtol=1e-4, atol=1e-5)


class _Spy(Mapping[str, T]):
    """Fields, or outputs, that note which of them are read."""

    def __init__(self, fields: Mapping[str, T], used: set[str]) -> None:
        self._fields = fields
        self._used = used

    def __getitem__(self, name: str) -> T:
        self._used.add(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _batch(rows: Rows, untrained: int = 0, dtype: torch.dtype = torch.float64) -> LossBatch:
    """A loss batch; ``untrained`` sequences without any token are among the others."""
    owners = [i + (untrained if i else 0) for i in range(rows.sequences)]
    sequence = [
        torch.full((len(r),), i) for i, r in zip(owners, rows.policy["logprobs"], strict=False)
    ]
    group, num_groups = None, 0
    if rows.group is not None:
        numbers = {each: number for number, each in enumerate(dict.fromkeys(rows.group))}
        alone = range(len(numbers), len(numbers) + untrained)
        group = torch.tensor([numbers[each] for each in rows.group], dtype=torch.int64)
        group = torch.cat([group[:1], torch.tensor([*alone], dtype=torch.int64), group[1:]])
        num_groups = len(numbers) + untrained
    return LossBatch(
        group=group,
        num_groups=num_groups,
        sequence=_join(sequence, torch.int64),
        num_sequences=rows.sequences + untrained,
        fields={name: _join(values, dtype) for name, values in rows.fields.items()},
    )


def _for_each(value: torch.Tensor | float, length: int) -> torch.Tensor:
    """A field's values of a sequence, in float64. [n]"""
    values = torch.as_tensor(value, dtype=torch.float64)
    return values.expand(length).clone()


def _join(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([*parts]).to(dtype) if parts else torch.empty(0, dtype=dtype)


def _policy(rows: Rows, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """What the policy gives, of all sequences; what can be differentiated asks for a gradient."""
    joined = {
        name: _join(parts, torch.int64 if name == "top_tokens" else dtype)
        for name, parts in rows.policy.items()
    }
    return {
        name: value.requires_grad_() if value.is_floating_point() else value
        for name, value in joined.items()
    }


def _outputs(
    loss: Loss, rows: Rows, policy: Tensors, batch: LossBatch, chunk: int = 1000
) -> ModelOutputs:
    """As a trainer hands them over; ``terms`` are made of so many tokens at a time."""
    given: dict[str, object] = {
        name: policy[name]
        for name in ("entropy", "hidden_states", "values")
        if getattr(rows.needs, name)
    }
    if rows.needs.top_logprobs:
        given["top_logprobs"] = TopLogprobs(policy["top_tokens"], policy["top_logprobs"])
    if rows.needs.log_softmax:
        log_softmax, terms = policy["log_softmax"], cast(ChunkedLoss, loss).terms
        parts = [slice(at, at + chunk) for at in range(0, max(len(log_softmax), 1), chunk)]
        given["terms"] = torch.cat([terms(log_softmax[each], batch.part(each)) for each in parts])
    return ModelOutputs(given)


def _called(
    loss: Loss, rows: Rows, policy: Tensors, batch: LossBatch, chunk: int = 1000
) -> LossOutput:
    return loss(policy["logprobs"], batch, _outputs(loss, rows, policy, batch, chunk))


def _call(
    loss: Loss,
    rows: Rows,
    untrained: int = 0,
    dtype: torch.dtype = torch.float64,
    chunk: int = 1000,
) -> tuple[LossOutput, Tensors]:
    """What the loss returns, and the gradients of its sum in what the policy gives, by name."""
    policy = _policy(rows, dtype)
    output = _called(loss, rows, policy, _batch(rows, untrained, dtype), chunk)
    if output.sum.requires_grad:
        torch.autograd.backward(output.sum)
    return output, {
        name: torch.zeros_like(value) if value.grad is None else value.grad
        for name, value in policy.items()
        if value.requires_grad
    }


def _reorder(values: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Values of sequences given in ``order``, put back into the order of ``LENGTHS``."""
    parts = torch.split(values, [LENGTHS[index] for index in order])
    return torch.cat([part for _, part in sorted(zip(order, parts, strict=True))])


def _equal(actual: torch.Tensor | float, expected: torch.Tensor | float) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64).detach(),
        torch.as_tensor(expected, dtype=torch.float64).detach(),
        rtol=1e-9,
        atol=1e-12,
    )
