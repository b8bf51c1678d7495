"""How much memory this process may count on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def host_memory() -> int:
    """Bytes of the machine, or of the container (control group) where that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text()))
    return total
