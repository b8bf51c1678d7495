"""The replay buffer as a component, so that a service can place it. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_core import Component, Selection
from forge_rollouts.settings import ReplayBufferSettings

if TYPE_CHECKING:
    from forge_rollouts.buffer import ReplayBuffer

REPLAY_BUFFER: Component[ReplayBuffer] = Component(
    name="fifo",
    settings=ReplayBufferSettings,
    build="forge_rollouts.buffer:ReplayBuffer",
    summary="first in, first out, within a bound on staleness",
)


def replay_buffer(max_staleness: int) -> Selection[ReplayBuffer]:
    """The buffer of a recipe with that bound."""
    return Selection(
        family="replay_buffer",
        component=REPLAY_BUFFER,
        settings=ReplayBufferSettings(max_staleness=max_staleness),
    )
