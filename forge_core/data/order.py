"""The order in which tasks are taken: seeded, endless, and resumable from one number."""

from __future__ import annotations

import random

from forge_core.seeding import derive_seed


class TaskOrder:
    """Indices of a dataset, every one once in each epoch, shuffled anew for each epoch.

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
        self._epoch: int | None = None
        self._shuffled: list[int] = []

    @property
    def epoch(self) -> int:
        """Whole passes finished so far."""
        return self.position // self.length

    def take(self, count: int) -> list[int]:
        """The next ``count`` indices; goes over into the next epoch where one ends."""
        taken = []
        for _ in range(count):
            epoch, offset = divmod(self.position, self.length)
            if epoch != self._epoch:
                self._epoch = epoch
                self._shuffled = list(range(self.length))
                random.Random(derive_seed(self.seed, "order", epoch)).shuffle(self._shuffled)
            taken.append(self._shuffled[offset])
            self.position += 1
        return taken
