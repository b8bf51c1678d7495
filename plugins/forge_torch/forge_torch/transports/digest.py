"""A checksum that is taken while the weights are still being copied."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch

from forge_core.tensors.checksum import checksum


def checksum_alongside(copies: Iterable[tuple[str, torch.Tensor]]) -> str:
    """``checksum`` of the copies, each in a second thread while the next one is made.

    Copying and weighing a tensor take about the same time, and both leave Python's lock alone.

    Args:
        copies: makes a copy each time it is asked for the next; they do not change any more.
    """
    made: SimpleQueue[tuple[str, torch.Tensor] | None] = SimpleQueue()
    with ThreadPoolExecutor(1, thread_name_prefix="checksum") as worker:
        digest = worker.submit(checksum, iter(made.get, None))
        try:
            for copy in copies:
                made.put(copy)
        finally:
            made.put(None)
        return digest.result()
