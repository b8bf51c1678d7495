"""The few functions that vLLM's sampler compiles, also where the model itself runs uncompiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def run_uncompiled_here() -> None:
    """Let vLLM's functions run uncompiled in this process. Before vLLM's sampler is imported.

    Not by torch's own switch: a trainer in the same process may compile.
    """
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.simple_compile_backend = "eager"


@contextmanager
def children_run_uncompiled() -> Iterator[None]:
    """Processes that are started meanwhile compile nothing."""
    before = os.environ.get("TORCH_COMPILE_DISABLE")
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCH_COMPILE_DISABLE"]
        else:
            os.environ["TORCH_COMPILE_DISABLE"] = before
