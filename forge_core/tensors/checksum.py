"""One checksum for a set of named tensors: equal if and (but for chance) only if all bytes are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import torch

_BLOCK = 1 << 18
"""Words weighed at a time: 2 MiB, so that words and weights stay in a processor's cache."""

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
    digests = sorted(_digest(name, tensor) for name, tensor in named)
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


def _digest(name: str, tensor: torch.Tensor) -> bytes:
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
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    multipliers = _multipliers(data.device)
    for block, start in enumerate(range(0, len(words), _BLOCK)):
        part = words[start : start + _BLOCK]
        total += _weigh(part, multipliers[: len(part)]) * _block_multiplier(block)
    tail = bytes(data[whole:].tolist())
    return (int(total) + int.from_bytes(tail, "little") * _GOLDEN + len(tail)) % 2**64


def _weigh(words: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    if words.device.type == "cpu":  # ten times as fast as the general way, and integers only there
        return torch.dot(words, multipliers)
    return (words * multipliers).sum()


@lru_cache(maxsize=8)
def _multipliers(device: torch.device) -> torch.Tensor:
    """Odd, pseudo-random, the same everywhere: a multiplicative hash of the position. [_BLOCK]"""
    positions = torch.arange(_BLOCK, dtype=torch.int64)
    hashed = positions * _GOLDEN
    hashed = (hashed ^ (hashed >> 29)) * -4658895280553007687  # 0xBF58476D1CE4E5B9 of splitmix64
    return (hashed | 1).to(device)


def _block_multiplier(block: int) -> int:
    """An odd multiplier for a block, as a signed 64-bit number."""
    value = ((2 * block + 1) * _GOLDEN) % 2**64
    return value - 2**64 if value >= 2**63 else value
