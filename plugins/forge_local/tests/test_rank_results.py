"""What several ranks' answers come to, when they come at almost the same time."""

from __future__ import annotations

import asyncio

import pytest

from forge_core import ReplicaDied, UsageError
from forge_local.rank_results import combined


def lost(died: ReplicaDied) -> None:
    raise AssertionError(died)


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("first", [0, 1])
async def test_the_first_error_is_raised_however_close_the_second_is(first: int, turns: int):
    """``turns`` of the event loop later: the second may be there before its callback has run."""
    loop = asyncio.get_running_loop()
    answers = [loop.create_future(), loop.create_future()]

    async def answer() -> None:
        answers[first].set_exception(UsageError(f"from {first}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        answers[1 - first].set_exception(UsageError(f"from {1 - first}"))

    answering = asyncio.create_task(answer())
    with pytest.raises(UsageError, match=f"rank {first} of replica 0: from {first}"):
        await combined(answers, "replica 0", "step()", lost)
    await answering
