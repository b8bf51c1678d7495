"""Around a loss: what it returns is checked, added up and reported."""

from __future__ import annotations

import pytest
import torch

from forge_core import LossBatch, LossOutput, ModelOutputs, RunFailed, UsageError
from forge_tensors.loss_step import LossSums, run_loss
from forge_tensors.metric_sums import MetricSums
from forge_tensors.mismatch import add_mismatch


class Returns:
    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, logprobs: object, batch: object, outputs: object) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def _batch() -> LossBatch:
    return LossBatch(torch.zeros(2, dtype=torch.int64), 1, {"weights": torch.tensor([1.0, 2.0])})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.0, "returned float, not LossOutput"),
        (LossOutput(torch.zeros(2), 2), r"a sum of shape \[2\]"),
        (LossOutput(torch.zeros(()), torch.ones(3)), r"a count of shape \[3\]"),
        (ZeroDivisionError("no"), "ZeroDivisionError: no"),
    ],
)
def test_a_loss_that_returns_something_else_is_named(value: object, message: str) -> None:
    with pytest.raises(RunFailed, match=f"loss Returns: .*{message}"):
        run_loss(Returns(value), torch.zeros(2), _batch(), ModelOutputs())  # type: ignore[arg-type]


def test_a_field_that_lacks_is_named() -> None:
    batch = LossBatch(torch.zeros(0), 0, {"other": torch.zeros(0)})
    with pytest.raises(UsageError, match=r"'weights'.*it gives: other"):
        run_loss(lambda _, given, __: given.field("weights"), torch.zeros(0), batch, ModelOutputs())


def test_metrics_add_up_to_one_mean() -> None:
    metrics = MetricSums()
    metrics.add_all({"a": (torch.tensor(6.0), 2), "never": (0.0, 0)})
    metrics.add_all({"a": (4.0, torch.tensor(3))})
    metrics.add_max("m", torch.tensor(1.0))
    metrics.add_max("m", -5.0)
    assert metrics.means() == {"a": 2.0, "m": 1.0}


def test_trouble_says_what_led_there() -> None:
    sums = LossSums()
    logprobs = torch.tensor([-0.5, float("-inf")])
    sums.add(LossOutput(torch.tensor(1.0), 2), torch.zeros(2), _batch())
    assert sums.trouble() is None
    assert (sums.total, sums.count) == (1.0, 2.0)
    sums.add(LossOutput(torch.tensor(float("inf")), 2), logprobs, _batch())
    assert sums.trouble() == (
        "the loss is inf over a count of 2 in micro-batch 2 of 2 (1 sequences, 2 trained tokens; "
        "logprobs -0.5 to -0.5 and 1 not finite, weights 1 to 2)"
    )


def test_mismatch_of_a_known_difference() -> None:
    metrics = MetricSums()
    add_mismatch(metrics, torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]))
    add_mismatch(metrics, torch.zeros(0), torch.zeros(0))
    means = metrics.means()
    assert means["mismatch/logprob_abs_mean"] == pytest.approx(0.25)
    assert means["mismatch/logprob_abs_max"] == pytest.approx(0.5)
    assert means["mismatch/kl"] == pytest.approx((torch.tensor(0.5).exp().item() - 1.5) / 2)
