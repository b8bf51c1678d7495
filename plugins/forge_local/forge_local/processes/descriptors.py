"""How many files and connections this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> None:
    """Raise the limit on open descriptors to the highest this user may have.

    For engines that keep descriptors for every process they talk to: with the usual 1,024 a run
    over many processes, or the twentieth run of a notebook, would end with ``Too many open files``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS says "unlimited" and takes no such number
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
