"""How many bytes of logits are held at a time. Imports nothing heavy: ``forge plan`` asks too."""

from __future__ import annotations

CPU_BYTES = 64 * 2**20
"""A chunk's temporaries come from and go back to the system; larger ones gain nothing."""

CUDA_BYTES = 2**30
"""Each chunk reads the head and adds its whole gradient, whatever the number of tokens. At 64 MiB
that is 110 tokens of a vocabulary of 151,936, and takes four times as long as the arithmetic."""

_SHARE = 64
"""A chunk is at most this part of a GPU's memory: about four of its size exist at a time."""


def chunk_bytes(cuda_memory: int | None = None) -> int:
    """Size of one chunk of float32 logits.

    Args:
        cuda_memory: bytes of the GPU that computes them; None: a CPU does.
    """
    if cuda_memory is None:
        return CPU_BYTES
    return max(CPU_BYTES, min(CUDA_BYTES, cuda_memory // _SHARE))
