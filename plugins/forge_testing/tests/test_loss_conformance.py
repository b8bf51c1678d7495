"""The loss suite passes a right loss and catches each way of being wrong that it is there for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forge_core import LossBatch, LossOutput, ModelOutputs, Selection
from forge_testing.conformance.loss import LossConformance, Rows
from forge_testing.context import select

NEEDS = frozenset({"weights", "entropy"})


class Weighted:
    """A right loss: weighted cross-entropy with an entropy bonus."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        weights = batch.field("weights")
        total = -(weights * logprobs).sum() - 0.1 * outputs.entropy.sum()
        return LossOutput(
            total, weights.sum(), {"nll": (-logprobs.detach().sum(), logprobs.numel())}
        )


class TestWeighted(LossConformance):
    @pytest.fixture
    def selection(self) -> Selection[Any]:
        return select("loss", lambda settings, context: Weighted(), needs=NEEDS)


class Mean(Weighted):
    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        return LossOutput(-(batch.field("weights") * logprobs).mean(), 1.0)


class Normalizes(Weighted):
    """Whitens a field over whatever happens to be in the micro-batch."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        weights = batch.field("weights")
        return LossOutput(-((weights - weights.mean()) * logprobs).sum(), logprobs.numel())


class Detached(Weighted):
    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        factor = logprobs.detach().exp()
        return LossOutput(-(factor * batch.field("weights") * logprobs).sum(), logprobs.numel())


suite = LossConformance()


def _rows(*more: str) -> Rows:
    return suite.make_rows({*NEEDS, *more})


@pytest.mark.parametrize("loss", [Mean(), Normalizes()])
def test_a_loss_that_depends_on_the_split_is_caught(loss: Weighted) -> None:
    with pytest.raises(AssertionError):
        suite.test_any_split_adds_up_to_the_same(loss, _rows(), [[0, 1], [2, 3]])


def test_needs_that_are_not_used_are_caught() -> None:
    with pytest.raises(AssertionError, match="other fields"):
        suite.test_needs_is_what_it_uses(Weighted(), _rows("advantages"))
    with pytest.raises(AssertionError, match="entropy"):
        suite.test_needs_is_what_it_uses(Detached(), _rows())


def test_a_gradient_that_is_not_the_values_is_caught() -> None:
    with pytest.raises(Exception, match="Jacobian mismatch"):
        suite.test_the_gradient_is_that_of_the_value(Detached(), _rows())


def test_nan_of_an_empty_batch_is_caught() -> None:
    with pytest.raises(AssertionError):
        suite.test_nothing_to_train_on_is_zero_and_not_nan(Mean(), _rows(), 0)
