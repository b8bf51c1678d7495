"""One checksum for a set of named tensors: equal if and (but for chance) only if all bytes are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch

_BLOCK = 1 << 18
"""Words weighed at a time: 2 MiB, so that words and weights stay in a processor's cache."""

_MANY = 64
"""Blocks weighed at a time on a GPU: 128 MiB, and as much for their products."""

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, 2**64 over the golden ratio; odd


def checksum(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Digest of names, types, shapes and bytes; independent of device and of the order given.

    A guard against lost, stale, mixed-up or partial transfers, not against an adversary: the bytes
    of a tensor are read as 64-bit words ``w_i`` and summed as ``sum_i w_i m_i`` modulo 2**64, with
    an odd multiplier ``m_i`` for each position: a change of one word always changes the sum, other
    changes but for chance. It runs at about the speed of memory, on the tensor's device.

    Args:
        named: pairs of a unique name and a tensor, of any type, layout and size.

    Returns:
        32 hexadecimal digits.
    """
    return combined(digest(name, tensor) for name, tensor in named)


class RunningChecksum:
    """``checksum`` of tensors that come one after the other, taken in a second thread meanwhile.

    Copying and weighing a tensor take about the same time, and both leave Python's lock alone.

    .. code-block:: python

        with RunningChecksum() as running:
            for name, tensor in copies:  # that do not change any more
                running.add(name, tensor)
        running.result()
    """

    def __init__(self) -> None:
        self._added: SimpleQueue[tuple[str, torch.Tensor] | None] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checksum")

    def __enter__(self) -> Self:
        self._checksum = self._thread.submit(checksum, iter(self._added.get, None))
        return self

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._added.put((name, tensor))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._added.put(None)
        self._thread.shutdown()

    def result(self) -> str:
        """The checksum of all that was added, once the block has ended."""
        return self._checksum.result()


def combined(digests: Iterable[bytes]) -> str:
    """The checksum of a set of tensors, from their digests in any order."""
    return hashlib.blake2b(b"".join(sorted(digests)), digest_size=16).hexdigest()


def digest(name: str, tensor: torch.Tensor) -> bytes:
    """One tensor's part of ``checksum``: for those who see tensors one after the other."""
    tensor = tensor.detach()
    label = f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f{_word_sum(tensor)}"
    return hashlib.blake2b(label.encode(), digest_size=16).digest()


def _word_sum(tensor: torch.Tensor) -> int:
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    whole = data.numel() // 8 * 8
    body = data[:whole]
    if body.storage_offset() % 8:  # a view can begin anywhere; words cannot
        body = body.clone()
    words = body.view(torch.int64)
    total = _by_blocks(words) if data.device.type == "cpu" else _by_many_blocks(words)
    tail = bytes(data[whole:].tolist()) if whole < data.numel() else b""
    return (total + int.from_bytes(tail, "little") * _GOLDEN + len(tail)) % 2**64


def _by_blocks(words: torch.Tensor) -> int:
    """Sum of the words by their multipliers, a block at a time. A dot product is ten times as fast
    as the general way on a CPU, and knows integers only there."""
    multipliers = _multipliers(words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for block, start in enumerate(range(0, len(words), _BLOCK)):
        part = words[start : start + _BLOCK]
        total += torch.dot(part, multipliers[: len(part)]) * _block_multiplier(block)
    return int(total)


def _by_many_blocks(words: torch.Tensor) -> int:
    """The same, many blocks a kernel: on a GPU, starting kernels for 2 MiB each takes far longer
    than reading it."""
    multipliers = _multipliers(words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    whole = len(words) // _BLOCK
    blocks = words[: whole * _BLOCK].view(whole, _BLOCK)
    for start in range(0, whole, _MANY):
        part = blocks[start : start + _MANY]
        factors = _block_multipliers(words.device, start)[: len(part)]
        total += ((part * multipliers).sum(1) * factors).sum()
    rest = words[whole * _BLOCK :]
    if len(rest):
        total += (rest * multipliers[: len(rest)]).sum() * _block_multiplier(whole)
    return int(total)


@lru_cache(maxsize=8)
def _multipliers(device: torch.device) -> torch.Tensor:
    """Odd, pseudo-random, the same everywhere: a multiplicative hash of the position. [_BLOCK]"""
    positions = torch.arange(_BLOCK, dtype=torch.int64)
    hashed = positions * _GOLDEN
    hashed = (hashed ^ (hashed >> 29)) * -4658895280553007687  # 0xBF58476D1CE4E5B9 of splitmix64
    return (hashed | 1).to(device)


@lru_cache(maxsize=4096)
def _block_multipliers(device: torch.device, first: int) -> torch.Tensor:
    """Of blocks from one on. [_MANY]"""
    values = [_block_multiplier(block) for block in range(first, first + _MANY)]
    return torch.tensor(values, dtype=torch.int64, device=device)


def _block_multiplier(block: int) -> int:
    """An odd multiplier for a block, as a signed 64-bit number."""
    value = ((2 * block + 1) * _GOLDEN) % 2**64
    return value - 2**64 if value >= 2**63 else value
