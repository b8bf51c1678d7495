"""What tests over several hosts share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """The right to make hosts: a machine has one set of them, and test files run side by side."""
    with FileLock(Path(tempfile.gettempdir()) / "forge-hosts.lock"):
        yield
