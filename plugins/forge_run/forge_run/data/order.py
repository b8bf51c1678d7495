"""The order in which tasks are taken: seeded, endless, and resumable from one number."""

from __future__ import annotations

import random
from functools import lru_cache

from forge_core import derive_seed


class TaskOrder:
    """Indices of a dataset, every one once in each epoch, reshuffled for each epoch.

    Args:
        length: of the dataset.
        seed: of the shuffles.
        position: how many indices were taken before; all the state there is.
    """

    def __init__(self, length: int, seed: int, *, position: int = 0) -> None:
        if length < 1:
            raise ValueError("an empty dataset has no order")
        self.length = length
        self.seed = seed
        self.position = position
        # Two, for looking ahead from one epoch into the next.
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    @property
    def epoch(self) -> int:
        """Whole passes finished so far."""
        return self.position // self.length

    def take(self, count: int) -> list[int]:
        """The next ``count`` indices; goes over into the next epoch where one ends."""
        taken = [self.at(self.position + offset) for offset in range(count)]
        self.position += count
        return taken

    def at(self, position: int) -> int:
        """The index at a position, which need not be the next; takes nothing."""
        epoch, offset = divmod(position, self.length)
        return self._shuffled(epoch)[offset]

    def _shuffle(self, epoch: int) -> list[int]:
        shuffled = list(range(self.length))
        random.Random(derive_seed(self.seed, "order", epoch)).shuffle(shuffled)
        return shuffled
