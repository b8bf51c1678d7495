"""A policy that gives scripted answers, for tests of what talks with a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_core import Completion, Sampling, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ScriptedPolicy:
    """Says one of its replies, chosen by the sample's seed alone, and stops.

    ``calls`` keeps every prompt with its sampling, ``completions`` everything it returned.

    Args:
        replies: texts to choose from.
        tokenizer: that makes tokens of them; its end-of-sequence token ends each completion.
    """

    def __init__(self, replies: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        self.replies = tuple(replies)
        self.tokenizer = tokenizer
        self.calls: list[tuple[list[int], Sampling]] = []
        self.completions: list[Completion] = []

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        """As ``forge_core.Generator.generate``. All logprobs and versions differ from
        those of tokens that were not sampled (0 and -1)."""
        self.calls.append((list(prompt), sampling))
        completions = [self._complete(sampling.seed, index) for index in range(sampling.n)]
        self.completions += completions
        return completions

    def _complete(self, seed: int | None, index: int) -> Completion:
        reply = self.replies[derive_seed(seed or 0, index) % len(self.replies)]
        tokens = self.tokenizer.encode(reply, add_special_tokens=False)
        tokens = [*tokens, self.tokenizer.eos_token_id]
        return Completion(
            tokens=tokens,
            logprobs=[-0.5 - position for position in range(len(tokens))],
            versions=[len(self.calls)] * len(tokens),
            finish_reason="stop",
        )
