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
from dataclasses import dataclass, replace

import pytest
import torch

from forge_core import Loss, LossBatch, LossOutput, Selection
from forge_testing.conformance.suite import Suite
from forge_testing.context import bare_context

LENGTHS = (3, 5, 1, 4)
"""Trained tokens of the sequences that the tests are made of."""


@dataclass(frozen=True)
class Rows:
    """What a loss is called with, one item a sequence: easy to split and to reorder."""

    logprobs: Sequence[torch.Tensor]
    entropy: Sequence[torch.Tensor]
    fields: Mapping[str, Sequence[torch.Tensor]]
    with_entropy: bool = False
    """The loss is given the entropy."""
    group: Sequence[int] | None = None

    def pick(self, indices: Sequence[int]) -> Rows:
        """The same for some of the sequences, in that order."""
        return Rows(
            [self.logprobs[i] for i in indices],
            [self.entropy[i] for i in indices],
            {name: [rows[i] for i in indices] for name, rows in self.fields.items()},
            self.with_entropy,
            None if self.group is None else [self.group[i] for i in indices],
        )

    def whole(self, parts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The same parts, with every sequence in that of the first of its group."""
        group = range(len(self.logprobs)) if self.group is None else self.group
        order = dict.fromkeys(group[i] for part in parts for i in part)
        homes = {group[i]: number for number, part in reversed([*enumerate(parts)]) for i in part}
        members = {each: [i for i, own in enumerate(group) if own == each] for each in order}
        found = [
            [i for each in order if homes[each] == number for i in members[each]]
            for number in range(len(parts))
        ]
        return [part for part in found if part]


class LossConformance(Suite):
    """Inherit with a ``selection`` fixture; override ``field`` for fields of your own."""

    not_differentiated: str = ""
    """Why the gradient is meant to differ from that of the value (a stop-gradient, say): the
    comparison with finite differences is left out, with this reason."""

    groups: Sequence[int] = ()
    """For a loss that compares sequences: the group of each of ``LENGTHS``, such as (0, 0, 1, 1)
    for pairs. Batches are then split between groups only."""

    @pytest.fixture
    def selection(self) -> Selection[Loss]:
        """The loss under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def loss(self, selection: Selection[Loss]) -> Loss:
        """The loss, built."""
        return selection.build(bare_context())

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
            name: [
                torch.as_tensor(self.field(name, row, generator), dtype=torch.float64)
                .expand(len(row))
                .clone()
                for row in logprobs
            ]
            for name in sorted(needs - {"entropy"})
        }
        entropy = [-negative(length) for length in LENGTHS]
        return Rows(logprobs, entropy, fields, "entropy" in needs, self.groups or None)

    def test_it_returns_a_sum_and_a_count(self, loss: Loss, rows: Rows) -> None:
        output, _, _ = _call(loss, rows)
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
        whole, gradient, of_entropy = _call(loss, rows)
        outputs = [_call(loss, rows.pick(part)) for part in parts]
        _equal(sum(output.sum for output, _, _ in outputs), whole.sum)
        _equal(sum(float(output.count) for output, _, _ in outputs), whole.count)
        order = [index for part in parts for index in part]
        _equal(_reorder(torch.cat([g for _, g, _ in outputs]), order), gradient)
        _equal(_reorder(torch.cat([e for _, _, e in outputs]), order), of_entropy)
        assert all(output.metrics.keys() == whole.metrics.keys() for output, _, _ in outputs)
        for name, pair in whole.metrics.items():
            for which in (0, 1):
                total = sum(float(output.metrics[name][which]) for output, _, _ in outputs)
                _equal(total, pair[which])
        for name, value in whole.maxima.items():
            _equal(max(float(output.maxima[name]) for output, _, _ in outputs), value)

    def test_the_order_of_sequences_does_not_matter(self, loss: Loss, rows: Rows) -> None:
        order = [2, 0, 3, 1]
        whole, gradient, _ = _call(loss, rows)
        output, permuted, _ = _call(loss, rows.pick(order))
        _equal(output.sum, whole.sum)
        _equal(output.count, whole.count)
        _equal(_reorder(permuted, order), gradient)

    def test_a_sequence_without_trained_tokens_adds_nothing(self, loss: Loss, rows: Rows) -> None:
        whole, gradient, _ = _call(loss, rows)
        output, same, _ = _call(loss, rows, untrained=2)
        _equal(output.sum, whole.sum)
        _equal(same, gradient)

    @pytest.mark.parametrize("untrained", [0, 2])
    def test_nothing_to_train_on_is_zero_and_not_nan(
        self, loss: Loss, rows: Rows, untrained: int
    ) -> None:
        output, gradient, _ = _call(loss, rows.pick([]), untrained=untrained)
        assert float(output.sum.detach()) == 0
        assert float(output.count) >= 0
        assert gradient.numel() == 0
        for total, count in output.metrics.values():
            assert torch.isfinite(torch.as_tensor(total))
            assert torch.isfinite(torch.as_tensor(count))
        assert not output.maxima, "there is no maximum of nothing"

    def test_the_gradient_is_that_of_the_value(self, loss: Loss, rows: Rows) -> None:
        if self.not_differentiated:
            pytest.skip(self.not_differentiated)
        batch = _batch(rows)
        entropy = torch.cat(list(rows.entropy)).requires_grad_()
        logprobs = torch.cat(list(rows.logprobs)).requires_grad_()

        def value(logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
            given = entropy if rows.with_entropy else None
            return loss(logprobs, batch, given).sum + 0 * entropy.sum()

        assert torch.autograd.gradcheck(value, (logprobs, entropy))

    def test_it_is_pure(self, loss: Loss, rows: Rows) -> None:
        batch = _batch(rows)
        kept = {name: values.clone() for name, values in batch.fields.items()}
        first, gradient, _ = _call(loss, rows)
        second, again, _ = _call(loss, rows)
        assert torch.equal(first.sum, second.sum)
        assert torch.equal(gradient, again)
        logprobs = torch.cat(list(rows.logprobs))
        before = logprobs.clone()
        loss(logprobs, batch, torch.cat(list(rows.entropy)) if rows.with_entropy else None)
        assert torch.equal(logprobs, before)
        for name, values in kept.items():
            assert torch.equal(batch.fields[name], values), f"the loss wrote into field {name}"

    def test_needs_is_what_it_uses(self, loss: Loss, rows: Rows) -> None:
        used: set[str] = set()
        batch = _batch(rows)
        spied = replace(batch, fields=_Spy(batch.fields, used))
        entropy = torch.cat(list(rows.entropy)) if rows.with_entropy else None
        output = loss(torch.cat(list(rows.logprobs)), spied, entropy)
        assert used == rows.fields.keys(), "needs names other fields than the loss reads"
        if entropy is not None:
            other = loss(torch.cat(list(rows.logprobs)), batch, entropy + 1)
            assert not torch.equal(output.sum, other.sum), "entropy is needed and not used"

    def test_float32_is_close_to_float64(self, loss: Loss, rows: Rows) -> None:
        wide, gradient, _ = _call(loss, rows)
        narrow, other, _ = _call(loss, rows, dtype=torch.float32)
        torch.testing.assert_close(narrow.sum.double(), wide.sum, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.double(), gradient, rtol=1e-4, atol=1e-5)


class _Spy(Mapping[str, torch.Tensor]):
    """Fields that note which of them are read."""

    def __init__(self, fields: Mapping[str, torch.Tensor], used: set[str]) -> None:
        self._fields = fields
        self._used = used

    def __getitem__(self, name: str) -> torch.Tensor:
        self._used.add(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _batch(rows: Rows, untrained: int = 0, dtype: torch.dtype = torch.float64) -> LossBatch:
    """A loss batch; ``untrained`` sequences without any token stand between the others."""
    owners = [i + (untrained if i else 0) for i in range(len(rows.logprobs))]
    sequence = [torch.full((len(r),), i) for i, r in zip(owners, rows.logprobs, strict=True)]
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
        num_sequences=len(rows.logprobs) + untrained,
        fields={name: _join(values, dtype) for name, values in rows.fields.items()},
    )


def _join(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([*parts, torch.empty(0)]).to(dtype)


def _call(
    loss: Loss, rows: Rows, untrained: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[LossOutput, torch.Tensor, torch.Tensor]:
    """What the loss returns, and the gradients of its sum in logprobs and entropy. [N] each"""
    logprobs = _join(rows.logprobs, dtype).requires_grad_()
    entropy = _join(rows.entropy, dtype).requires_grad_()
    output = loss(logprobs, _batch(rows, untrained, dtype), entropy if rows.with_entropy else None)
    if output.sum.requires_grad:
        torch.autograd.backward(output.sum)
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (logprobs, entropy)]
    return output, gradients[0], gradients[1]


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
