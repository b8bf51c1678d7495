"""What every peer of the speed comparison does, written once (standard library only).

GRPO: a batch is 8 prompts with 8 completions each, sampled at temperature 1, rewarded by
`reward`, and used for one optimizer step with group-relative advantages, the PPO clip and no
KL term. `grpo-short` stops at 16 tokens, `grpo-long` at 256 tokens where the model's own
end-of-sequence token (probability about 1/35 a token, see tiny_model.py) ends most completions
much earlier. The learning rate is too small to move the length distribution.

SFT: a batch is 8 texts, next-token cross-entropy on all tokens, end-of-sequence token included.
In `sft-equal` every row has 256 tokens, in `sft-unequal` 64 to 256, uniformly drawn.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

SEED = 20240
GROUP_SIZE = 8
SFT_ROWS = 8
SFT_MAX_TOKENS = 256
MEAN_COMPLETION_TOKENS = 35  # of the model's unbounded completions, end of sequence included
MAX_GRAD_NORM = 1.0
CLIP_EPSILON = 0.2

PROMPTS = (
    "12 + 34 = ",
    "sort: dbca",
    "reverse abc",
    "9 * 8 is ",
    "next: 2 4 6",
    "count: xxyx",
    "capital: q",
    "x - 7 = 15, x",
)


@dataclass(frozen=True)
class Grpo:
    """A GRPO batch: all prompts, `GROUP_SIZE` completions each, at most `max_new_tokens` long."""

    max_new_tokens: int
    learning_rate: float = 1e-7
    prompts: tuple[str, ...] = PROMPTS
    group_size: int = GROUP_SIZE

    @property
    def completions(self) -> int:
        return len(self.prompts) * self.group_size


@dataclass(frozen=True)
class Sft:
    """An SFT batch: `rows` texts of `min_tokens` to `SFT_MAX_TOKENS` tokens."""

    min_tokens: int
    learning_rate: float = 1e-4
    rows: int = SFT_ROWS
    max_tokens: int = SFT_MAX_TOKENS

    def texts(self, steps: int) -> list[str]:
        """The texts of `steps` batches, in order; a row is its text and one end of sequence."""
        rng = random.Random(SEED)
        alphabet = string.ascii_lowercase + string.digits + "    .,;"
        return [
            "".join(rng.choices(alphabet, k=rng.randint(self.min_tokens, self.max_tokens) - 1))
            for _ in range(steps * self.rows)
        ]


WORKLOADS: dict[str, Grpo | Sft] = {
    "grpo-short": Grpo(max_new_tokens=16),
    "grpo-long": Grpo(max_new_tokens=256),
    "sft-equal": Sft(min_tokens=SFT_MAX_TOKENS),
    "sft-unequal": Sft(min_tokens=64),
}


def reward(completion: str) -> float:
    """The fraction of vowels in the completion."""
    return sum(char in "aeiou" for char in completion) / max(len(completion), 1)
