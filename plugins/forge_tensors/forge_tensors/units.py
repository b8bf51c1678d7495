"""Sequences that belong together (``TrainSequence.group``): what no trainer may part."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core import TrainSequence, UsageError

Unit = list[int]
"""Indices of sequences that go through the loss in one call, counted over all micro-batches."""


def units(micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[Unit]]:
    """Each group, and each sequence that is in none, by micro-batch in the order of their first
    sequences. A trainer splits micro-batches, and balances ranks, between them only.

    Raises:
        UsageError: a group is in several micro-batches, so that no trainer can keep it together.
    """
    found: list[list[Unit]] = []
    homes: dict[int, int] = {}
    index = 0
    for number, sequences in enumerate(micro_batches):
        here: dict[int, Unit] = {}
        found.append([])
        for sequence in sequences:
            group = sequence.group
            if group is None:
                found[-1].append([index])
            elif group in here:
                here[group].append(index)
            else:
                if homes.setdefault(group, number) != number:
                    raise UsageError(
                        f"sequences of group {group} are in micro-batches {homes[group] + 1} and "
                        f"{number + 1}; a recipe puts what belongs together into one"
                    )
                here[group] = [index]
                found[-1].append(here[group])
            index += 1
    return found
