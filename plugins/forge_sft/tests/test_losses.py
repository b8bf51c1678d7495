"""Loss ``cross_entropy``."""

from __future__ import annotations

import pytest
import torch

from forge_core import Loss, Selection, TrainSequence
from forge_sft.losses.cross_entropy import CrossEntropy
from forge_sft.plugin import forge_losses
from forge_tensors.batch import pack
from forge_testing.conformance.loss import LossConformance


class TestCrossEntropy(LossConformance):
    @pytest.fixture
    def selection(self) -> Selection[Loss]:
        (component,) = forge_losses()
        return Selection(family="loss", component=component, settings=component.settings())


def test_it_is_the_cross_entropy_of_padded_batches() -> None:
    """Against torch's own over padded rows, where the pad token is also the end token."""
    pad, vocabulary = 0, 11
    rows = [([3, 4], [5, 6, pad]), ([7], [8, pad]), ([1, 2, 3], [4])]
    generator = torch.Generator().manual_seed(0)
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    logits = torch.randn(
        len(rows), longest, vocabulary, generator=generator, dtype=torch.float64, requires_grad=True
    )
    targets = torch.full((len(rows), longest), -100)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        targets[row, len(prompt) - 1 : end - 1] = torch.tensor(response)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    batch = pack(
        [
            TrainSequence([*prompt, *response], [False] * len(prompt) + [True] * len(response))
            for prompt, response in rows
        ]
    )
    trained = targets.flatten() != -100
    assert batch.tokens[batch.targets].tolist() == targets.flatten()[trained].tolist()
    logprobs = logits.flatten(0, 1)[trained].log_softmax(-1)
    logprobs = logprobs.gather(1, batch.tokens[batch.targets][:, None])[:, 0]
    output = CrossEntropy()(logprobs, batch.loss_batch, None)
    assert output.count == 6
    torch.testing.assert_close(output.sum / output.count, expected)
    (ours,) = torch.autograd.grad(output.sum / output.count, logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(ours, theirs)
