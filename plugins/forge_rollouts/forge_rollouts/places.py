"""Places that are taken several at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class Places:
    """A number of places. Those who ask get theirs all at once and in the order of asking, so that
    two who each need several never wait for each other.

    Args:
        most: how many there are.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int) -> None:
        """Wait for that many places, at most ``most``."""
        if not self._waiting and count <= self._free:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove((count, turn))
                self.give(0)
            raise

    def give(self, count: int) -> None:
        """Give places back."""
        self._free += count
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= wanted
                turn.set_result(None)
