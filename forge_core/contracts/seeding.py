"""Seeds for everything random in a run, derived from one number."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: object) -> int:
    """A 63-bit seed that depends on the run's seed and on what it is for, and on nothing else.

    The same (seed, names) gives the same result in every process and on every host.
    """
    text = "\x1f".join([str(seed), *map(str, names)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
