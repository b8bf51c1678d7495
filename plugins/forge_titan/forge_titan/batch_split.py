"""Which sequences each data-parallel rank trains on, in how many forward passes.

Every rank is given all sequences and works out all ranks' shares alike, so nothing is sent. Ranks
make equally many passes (an empty one where they have nothing), because each is a collective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Pass = list[int]
"""Indices of what goes through the model together."""


def share(sizes: Sequence[Sequence[int]], ranks: int, max_tokens: int | None) -> list[list[Pass]]:
    """Passes of each rank.

    Args:
        sizes: tokens of each unit (a sequence, or those that belong together), by micro-batch;
            indices count over all micro-batches.
        ranks: data-parallel ranks.
        max_tokens: most tokens in a pass; a longer unit goes alone.

    Returns:
        for each rank its passes, equally many. With one rank they are the micro-batches, without
        empty ones, split where they are too large.
    """
    flat = [size for batch in sizes for size in batch]
    batches: list[Pass] = []
    start = 0
    for batch in sizes:
        if batch:
            batches.append(list(range(start, start + len(batch))))
        start += len(batch)
    rounds = math.ceil(len(batches) / ranks)
    if len(batches) != rounds * ranks:
        batches = _balance(flat, rounds * ranks)
    shares: list[list[Pass]] = [[] for _ in range(ranks)]
    for index, batch_indices in enumerate(batches):
        shares[index % ranks] += _split(batch_indices, flat, max_tokens or math.inf)
    most = max((len(passes) for passes in shares), default=0)
    return [passes + [[] for _ in range(most - len(passes))] for passes in shares]


def _balance(sizes: Sequence[int], bins: int) -> list[Pass]:
    """All units in so many bins of about equally many tokens: the longest first, each to the
    emptiest bin."""
    filled: list[Pass] = [[] for _ in range(bins)]
    used = [0] * bins
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        target = min(range(bins), key=lambda b: (used[b], b))
        filled[target].append(index)
        used[target] += sizes[index]
    return [sorted(indices) for indices in filled]


def _split(indices: Pass, sizes: Sequence[int], most: float) -> list[Pass]:
    parts: list[Pass] = []
    used = 0
    for index in indices:
        if not parts or used + sizes[index] > most:
            parts.append([])
            used = 0
        parts[-1].append(index)
        used += sizes[index]
    return parts
