"""Batches as a model and a loss see them. One row of real tokens; there is no padding to get wrong.

Sequences of unequal length are laid end to end (``PackedBatch``): positions restart at each, and
attention never crosses from one to another. A loss sees only the trained tokens
(``forge_core.LossBatch``).
"""

from __future__ import annotations

import itertools
from collections.abc import KeysView, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from forge_core import FloatArray, LossBatch, TrainSequence


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """S sequences laid end to end.

    Args:
        tokens: token ids. [T] int64
        positions: restart at 0 in each sequence. [T] int64
        lengths: of the sequences, in order; they sum to T. [S]
        targets: indices into ``tokens`` of the N trained tokens; the model's output at
            ``targets - 1`` predicts them. [N] int64
        loss_batch: the same N tokens as the loss sees them.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    lengths: tuple[int, ...]
    targets: torch.Tensor
    loss_batch: LossBatch

    def rows(self, values: torch.Tensor) -> list[FloatArray]:
        """A number for each token of each sequence: those of the N trained tokens, else 0. [S]"""
        whole = torch.zeros(self.tokens.numel(), device=values.device)
        whole[self.targets] = values.float()
        numbers = whole.cpu().numpy()  # one copy from the device for all rows
        return np.split(numbers, list(accumulate(self.lengths))[:-1])

    def select(self, sequences: Sequence[int]) -> tuple[PackedBatch, torch.Tensor]:
        """Some of the sequences as a batch of their own.

        Args:
            sequences: their indices, in any order; at least one. [K]

        Returns:
            the batch, and which of the N trained tokens are its n. [n] int64
        """
        device = self.tokens.device
        ends = list(itertools.accumulate(self.lengths))
        spans = [torch.arange(ends[i] - self.lengths[i], ends[i]) for i in sequences]
        tokens = torch.cat(spans).to(device)
        place = torch.full_like(self.tokens, -1)  # in the new batch, of each token of this one
        place[tokens] = torch.arange(tokens.numel(), device=device)
        targets = place[self.targets]
        order = targets.argsort()[int((targets < 0).sum()) :]
        owners = torch.full((len(self.lengths),), -1, device=device)
        owners[list(sequences)] = torch.arange(len(sequences), device=device)
        loss_batch = LossBatch(
            sequence=owners[self.loss_batch.sequence[order]],
            num_sequences=len(sequences),
            fields={name: values[order] for name, values in self.loss_batch.fields.items()},
        )
        # Groups are not renumbered: no loss sees this batch, its scores are put together again.
        lengths = tuple(self.lengths[i] for i in sequences)
        return (
            PackedBatch(
                self.tokens[tokens], self.positions[tokens], lengths, targets[order], loss_batch
            ),
            order,
        )


def pack(sequences: Sequence[TrainSequence], device: torch.device | str = "cpu") -> PackedBatch:
    """Lay sequences end to end.

    Raises:
        ValueError: a sequence is empty or trains its first token, or the sequences do not all have
            the same fields.
    """
    if not sequences:
        raise ValueError("a batch holds at least one sequence")
    names = sequences[0].fields.keys()
    for index, sequence in enumerate(sequences):
        _check(index, sequence, names)
    lengths = [len(sequence.tokens) for sequence in sequences]
    targets = np.flatnonzero(np.concatenate([sequence.loss_mask for sequence in sequences]))
    fields = {
        name: torch.from_numpy(
            np.concatenate(
                [
                    np.broadcast_to(np.asarray(sequence.fields[name], np.float32), length)
                    for sequence, length in zip(sequences, lengths, strict=True)
                ]
            )[targets]
        ).to(device)
        for name in names
    }
    group, num_groups = _groups(sequences)
    owners = np.repeat(np.arange(len(sequences)), lengths)[targets]
    tokens = np.concatenate([sequence.tokens for sequence in sequences])
    return PackedBatch(
        tokens=torch.from_numpy(tokens.astype(np.int64)).to(device),
        positions=torch.cat([torch.arange(length) for length in lengths]).to(device),
        lengths=tuple(lengths),
        targets=torch.from_numpy(targets).to(device),
        loss_batch=LossBatch(
            sequence=torch.from_numpy(owners).to(device),
            num_sequences=len(sequences),
            fields=fields,
            group=None if group is None else torch.tensor(group, device=device),
            num_groups=num_groups,
        ),
    )


def _groups(sequences: Sequence[TrainSequence]) -> tuple[list[int] | None, int]:
    """Number of each sequence's group, counted from 0 [S], and how many there are."""
    if all(sequence.group is None for sequence in sequences):
        return None, 0
    keys = [
        ("alone", index) if sequence.group is None else ("group", sequence.group)
        for index, sequence in enumerate(sequences)
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys], len(numbers)


def _check(index: int, sequence: TrainSequence, names: KeysView[str]) -> None:
    if len(sequence.tokens) == 0:
        raise ValueError(f"sequence {index} is empty")
    if sequence.loss_mask[0]:
        raise ValueError(f"sequence {index} trains its first token, which nothing predicts")
    if sequence.fields.keys() != names:
        raise ValueError(
            f"sequence {index} has the fields {sorted(sequence.fields)}, sequence 0 {sorted(names)}"
        )
