"""Two processes that are the ranks of a trainer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forge_testing.ranks import RankPool


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool
