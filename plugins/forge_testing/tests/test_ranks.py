"""A rank that crashes costs the test that it crashed in, and no other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from forge_core import BuildContext, Component, Selection, Settings
from forge_testing import ranks as module
from forge_testing.context import bare_context
from forge_testing.ranks import RankDied, RankError, RankPool, Together


class Crashing:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    async def pid(self) -> int:
        return os.getpid()

    async def crash(self, rank: int) -> None:
        """That rank crashes; the other waits for it, as in a collective."""
        if self.rank == rank:
            os.abort()
        time.sleep(600)

    async def leave(self, rank: int) -> None:
        if self.rank == rank:
            os._exit(3)
        time.sleep(600)

    async def fail(self) -> None:
        raise ValueError(f"no, says {self.rank}")

    async def close(self) -> None:
        pass


def build_crashing(settings: Settings, context: BuildContext) -> Crashing:
    return Crashing(context.rank)


CRASHING: Component[Any] = Component(
    name="crashing", settings=Settings, build=build_crashing, summary="a rank that crashes"
)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def build(pool: RankPool) -> Together:
    selection: Selection[Any] = Selection(family="trainer", component=CRASHING, settings=Settings())
    return pool.build(selection, bare_context())


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_crash_is_named_at_once_and_the_next_build_has_new_ranks(
    pool: RankPool, rank: int
) -> None:
    together = build(pool)
    await together.pid()
    before = together.all
    started = time.monotonic()
    with pytest.raises(RankDied) as caught:
        await together.crash(rank)
    assert str(caught.value) == f"rank {rank} was killed by SIGABRT, in crash()"
    assert time.monotonic() - started < 60, "the rank that hangs is not waited for"
    with pytest.raises(RankDied, match="in an earlier call"):
        await together.pid()

    again = build(pool)
    await again.pid()
    assert not set(again.all) & set(before)


async def test_a_crash_prints_where_python_was(capfd: pytest.CaptureFixture[str]) -> None:
    with RankPool(1) as pool, pytest.raises(RankDied):
        await build(pool).crash(0)
    printed = capfd.readouterr().err
    assert "Fatal Python error: Aborted" in printed
    assert "in crash" in printed


async def test_a_rank_that_leaves_and_one_that_raises(pool: RankPool) -> None:
    together = build(pool)
    with pytest.raises(RankDied, match=r"^rank 0 ended with exit code 3, in leave\(\)$"):
        await together.leave(0)
    with pytest.raises(RankError, match=r"rank 0: (?s:.*)ValueError: no, says 0"):
        await build(pool).fail()
    await build(pool).pid()


async def test_ranks_that_do_not_answer_are_replaced(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = build(pool)
    with monkeypatch.context() as patch:
        patch.setattr(module, "DEADLINE", 1.0)
        with pytest.raises(TimeoutError, match=r"ranks 0, 1 have not answered for 1 s, in crash"):
            await together.crash(-1)
    assert await build(pool).pid() > 0
