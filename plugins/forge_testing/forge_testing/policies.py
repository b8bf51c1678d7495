"""Models that a policy samples from, version by version, and what its logprobs must be."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forge_core import Completion, ModelInit, Sampling, Transport, WeightManifest
from forge_testing.shapes import tiny_shape

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def policy_init(architecture: str = "qwen3", **changes: Any) -> ModelInit:
    """A tiny model far from uniform, so that a wrong past or a wrong position shows.

    Args:
        architecture: as Hugging Face calls it.
        changes: keys of its config in place of these, or beside them.
    """
    shape = {
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    }
    return ModelInit(
        architecture=architecture,
        characters="0123456789+-*/=() abcdefgh",
        config=tiny_shape(**shape | changes),
    )


def with_noise(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A copy of the model with other weights."""
    import torch

    changed = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            delta = torch.randn(parameter.shape, generator=noise)
            parameter += 0.1 * delta.to(parameter.dtype)
    return changed


class Versions:
    """The trainer's end of a transport, and the weights of each version that it published.

    Args:
        publisher: end of the transport; its maker closes it.
        model: version 0, which everybody starts with.
    """

    def __init__(self, publisher: Transport, model: PreTrainedModel) -> None:
        self._publisher = publisher
        self.models = [model]

    @property
    def last(self) -> int:
        """The newest version."""
        return len(self.models) - 1

    async def publish_next(self, leave_out: str = "") -> WeightManifest:
        """Change the weights and publish them.

        Args:
            leave_out: name of a parameter that is not published.
        """
        self.models.append(with_noise(self.models[-1], seed=len(self.models)))
        weights = self.models[-1].named_parameters()  # tied ones once
        return await self._publisher.publish(
            self.last, [pair for pair in weights if pair[0] != leave_out]
        )

    def check(
        self,
        prompt: Sequence[int],
        completion: Completion,
        sampling: Sampling,
        tolerance: float = 1e-3,
    ) -> None:
        """Compare each logprob with a forward pass of the model that its version names.

        For engines that recompute a token's past when weights change, so that it is that
        model's own.
        """
        assert list(completion.versions) == sorted(completion.versions)
        whole = (*prompt, *completion.tokens)
        logits = {
            version: forward(self.models[version], whole)[len(prompt) - 1 : -1]
            for version in set(completion.versions)
        }
        for place, (token, logprob, version) in enumerate(
            zip(completion.tokens, completion.logprobs, completion.versions, strict=True)
        ):
            expected = distribution(logits[version][place], sampling)[token]
            assert abs(logprob - expected) <= tolerance, (place, version, logprob, expected)


def distribution(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """Token -> logprob under ``sampling``, from its definition, in plain floats."""
    import torch

    greedy = sampling.temperature == 0
    scaled = logits.double() / (1.0 if greedy else sampling.temperature)
    ranked = sorted(enumerate(scaled.softmax(-1).tolist()), key=lambda item: -item[1])
    if not greedy:
        ranked = ranked[: sampling.top_k or None]
        whole = sum(probability for _, probability in ranked)
        reached, kept = 0.0, 0
        while reached < sampling.top_p and kept < len(ranked):
            reached += ranked[kept][1] / whole
            kept += 1
        ranked = ranked[:kept] if sampling.top_p < 1 else ranked
    whole = sum(probability for _, probability in ranked)
    probabilities = torch.tensor([probability / whole for _, probability in ranked])
    return dict(
        zip((token for token, _ in ranked), probabilities.double().log().tolist(), strict=True)
    )


def forward(model: PreTrainedModel, sequence: Sequence[int]) -> torch.Tensor:
    """Logits after each token of a sequence, without a cache. [T, V]"""
    import torch

    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(sequence)])).logits[0]
    return logits.float()
