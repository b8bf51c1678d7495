"""Draw next tokens for a batch of rows, each under its own ``Sampling``.

A row's token is the inverse CDF of its distribution at one uniform number, so that what a row
samples depends on its own stream of uniforms and not on its companions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from forge_core import Sampling, derive_seed


def uniform_stream(seed: int | None, index: int) -> random.Random:
    """The uniforms of sample ``index``: one for each position, reproducible if there is a seed."""
    return random.Random(None if seed is None else derive_seed(seed, index))


class BatchSampler:
    """Samples for a fixed list of rows. Rebuilt when rows come or go; free of host syncs.

    Args:
        samplings: of the B rows.
        device: where the logits are.
    """

    def __init__(self, samplings: Sequence[Sampling], device: torch.device) -> None:
        # Greedy reports logprobs at temperature 1 of the raw distribution.
        temperatures = [sampling.temperature or 1.0 for sampling in samplings]
        self._temperature: float | torch.Tensor = temperatures[0]
        if any(temperature != temperatures[0] for temperature in temperatures):
            self._temperature = torch.tensor(temperatures, device=device).unsqueeze(-1)

        greedy = [sampling.temperature == 0 for sampling in samplings]
        self._greedy = torch.tensor(greedy, device=device) if any(greedy) else None
        self._all_greedy = all(greedy)

        restricted = [
            row
            for row, sampling in enumerate(samplings)
            if sampling.temperature and (sampling.top_k or sampling.top_p < 1)
        ]
        self._restricted: torch.Tensor | None = None
        if restricted:
            self._restricted = torch.tensor(restricted, device=device)
            self._top_k = torch.tensor([samplings[row].top_k for row in restricted], device=device)
            self._top_p = torch.tensor(
                [samplings[row].top_p for row in restricted], device=device, dtype=torch.float64
            )

    def __call__(
        self, logits: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample one token a row.

        Args:
            logits: any float type. [B, V]
            uniforms: in [0, 1). [B] float64

        Returns:
            Tokens [B] int64 and their logprobs under the distribution sampled from [B] float32.
        """
        logits = logits.float()
        if not isinstance(self._temperature, float) or self._temperature != 1.0:
            logits = logits / self._temperature
        logprobs = logits.log_softmax(-1)
        if self._restricted is not None:
            logprobs[self._restricted] = restrict(
                logprobs[self._restricted], self._top_k, self._top_p
            )
        if self._all_greedy:
            tokens = logprobs.argmax(-1)
        else:
            tokens = inverse_cdf(logprobs, uniforms)
            if self._greedy is not None:
                tokens = torch.where(self._greedy, logprobs.argmax(-1), tokens)
        return tokens, logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def restrict(logprobs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the top k tokens, then the smallest set of those whose probability reaches top p.

    Args:
        logprobs: normalized. [B, V]
        top_k: 0 turns it off. [B] int64
        top_p: of what top-k left, renormalized; 1 turns it off. [B] float64

    Returns:
        Logprobs renormalized over the kept tokens, -inf elsewhere. [B, V]
    """
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    vocabulary = logprobs.shape[-1]
    limit = torch.where(top_k > 0, top_k, vocabulary).unsqueeze(-1)
    keep = torch.arange(vocabulary, device=logprobs.device) < limit
    probabilities = ordered.double().exp() * keep
    probabilities /= probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    # At top_p = 1 rounding must not drop the tail.
    keep &= before < torch.where(top_p < 1, top_p, torch.inf).unsqueeze(-1)
    kept = torch.zeros_like(keep).scatter(-1, order, keep)
    return logprobs.masked_fill(~kept, -torch.inf).log_softmax(-1)


def inverse_cdf(logprobs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds the uniform. Never one of probability 0.

    Args:
        logprobs: normalized, -inf allowed. [B, V]
        uniforms: in [0, 1). [B] float64

    Returns:
        Token ids. [B] int64
    """
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    # The sum is 1 but for rounding; one part in 2**40 off keeps the product strictly below it.
    total = cumulative[:, -1:] * (1 - 2**-40)
    tokens = torch.searchsorted(cumulative, uniforms.unsqueeze(-1) * total, right=True).squeeze(-1)
    # NaN is behind all; the id must stay one, for the engine to see the NaN in its logprob.
    return tokens.clamp_(max=logprobs.shape[-1] - 1)
