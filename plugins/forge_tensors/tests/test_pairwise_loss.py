"""Losses that compare sequences: Direct Preference Optimization under the loss suite."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import pytest
import torch

from forge_core import Loss, LossBatch, LossOutput, ModelOutputs, Selection
from forge_testing.conformance.loss import LossConformance, Rows
from forge_testing.context import select

BETA = 0.1


class Dpo:
    """-log sigmoid(beta (margin of the chosen - margin of the rejected)), a margin being the sum of
    log ratios to the reference over a sequence (arXiv:2305.18290, eq. 7)."""

    def __call__(
        self, logprobs: torch.Tensor, batch: LossBatch, outputs: ModelOutputs
    ) -> LossOutput:
        if batch.group is None:
            raise ValueError("sequences come without the pairs that they belong to")
        signed = batch.field("chosen") * (logprobs - batch.field("reference_logprobs"))
        owners = batch.group[batch.sequence]
        margins = logprobs.new_zeros(batch.num_groups).index_add(0, owners, signed)
        real = owners.bincount(minlength=batch.num_groups) > 0
        loss = -torch.nn.functional.logsigmoid(BETA * margins[real])
        right = (margins[real] > 0).sum()
        return LossOutput(loss.sum(), loss.numel(), {"accuracy": (right, loss.numel())})


class TestDpo(LossConformance):
    groups = (0, 1, 0, 1)

    @pytest.fixture
    def selection(self) -> Selection[Loss]:
        needs = {"chosen", "reference_logprobs"}
        return select("loss", lambda settings, context: Dpo(), needs=needs)

    def make_rows(self, needs: Set[str]) -> Rows:
        rows = super().make_rows(needs)
        signs = [
            torch.full_like(row, 1.0 if i < 2 else -1.0)
            for i, row in enumerate(rows.policy["logprobs"])
        ]
        return replace(rows, fields={**rows.fields, "chosen": signs})
