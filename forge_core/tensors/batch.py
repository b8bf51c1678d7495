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
from typing import Any

import torch

from forge_core.contracts.loss import LossBatch
from forge_core.contracts.types import TrainSequence


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

    def rows(self, values: torch.Tensor) -> list[list[float]]:
        """A number for each token of each sequence: those of the N trained tokens, else 0. [S]"""
        whole = torch.zeros(self.tokens.numel(), device=values.device)
        whole[self.targets] = values.float()
        numbers: list[float] = whole.tolist()  # one copy from the device for all rows
        ends = list(accumulate(self.lengths))
        return [numbers[end - n : end] for n, end in zip(self.lengths, ends, strict=True)]

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
        lengths = tuple(self.lengths[i] for i in sequences)
        return (
            PackedBatch(
                self.tokens[tokens], self.positions[tokens], lengths, targets[order], loss_batch
            ),
            order,
        )


def pack(sequences: Sequence[TrainSequence], device: torch.device | str = "cpu") -> PackedBatch:
    """Lay sequences end to end. Arrays and tensors are taken like lists of the same numbers.

    Raises:
        ValueError: a sequence is empty, trains its first token, or has a mask or field of another
            length, a field is neither a number nor one number for each token, or the sequences do
            not all have the same fields.
    """
    if not sequences:
        raise ValueError("a batch holds at least one sequence")
    names = sequences[0].fields.keys()
    tokens: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    values: dict[str, list[float]] = {name: [] for name in names}
    for index, sequence in enumerate(sequences):
        _check(index, sequence, names)
        trained = [i for i, is_trained in enumerate(_plain(sequence.loss_mask)) if is_trained]
        targets.extend(len(tokens) + i for i in trained)
        tokens.extend(_plain(sequence.tokens))
        owners.extend([index] * len(trained))
        for name, given in sequence.fields.items():
            value = _numbers(given, len(sequence.tokens), f"sequence {index}: field {name!r}")
            if isinstance(value, list):
                values[name].extend(value[i] for i in trained)
            else:
                values[name].extend([value] * len(trained))
    lengths = tuple(len(sequence.tokens) for sequence in sequences)
    fields = {
        name: torch.tensor(numbers, dtype=torch.float32, device=device)
        for name, numbers in values.items()
    }
    return PackedBatch(
        tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
        positions=torch.cat([torch.arange(length) for length in lengths]).to(device),
        lengths=lengths,
        targets=torch.tensor(targets, dtype=torch.int64, device=device),
        loss_batch=LossBatch(
            sequence=torch.tensor(owners, dtype=torch.int64, device=device),
            num_sequences=len(sequences),
            fields=fields,
        ),
    )


def _check(index: int, sequence: TrainSequence, names: KeysView[str]) -> None:
    length = len(sequence.tokens)
    if length == 0:
        raise ValueError(f"sequence {index} is empty")
    if len(sequence.loss_mask) != length:
        raise ValueError(
            f"sequence {index} has {length} tokens and a loss mask of {len(sequence.loss_mask)}"
        )
    if sequence.loss_mask[0]:
        raise ValueError(f"sequence {index} trains its first token, which nothing predicts")
    if sequence.fields.keys() != names:
        raise ValueError(
            f"sequence {index} has the fields {sorted(sequence.fields)}, sequence 0 {sorted(names)}"
        )


def _plain(values: Any) -> Any:
    """Numbers of Python's own: ``tolist`` is what numpy arrays, their scalars and tensors have."""
    return values.tolist() if hasattr(values, "tolist") else values


def _numbers(value: Any, length: int, where: str) -> float | list[float]:
    """A field's value as one number, or as one number for each of ``length`` tokens."""
    plain = _plain(value)
    if isinstance(plain, float | int):
        return plain
    if not isinstance(plain, Sequence) or isinstance(plain, str | bytes):
        raise ValueError(
            f"{where} is a {type(value).__name__}; a number or one number for each token is allowed"
        )
    numbers = [_plain(number) for number in plain]
    if len(numbers) != length:
        raise ValueError(f"{where} has {len(numbers)} numbers for {length} tokens")
    for number in numbers:
        if not isinstance(number, float | int):
            raise ValueError(f"{where} holds a {type(number).__name__}; only numbers are allowed")
    return numbers
