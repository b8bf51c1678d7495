"""The replay buffer as a component, so that a service can place it. Imports nothing heavy."""

from __future__ import annotations

from pydantic import Field

from forge_core import BuildContext, Component, Selection, Settings
from forge_rollouts.buffer import ReplayBuffer


class ReplayBufferSettings(Settings):
    """What the recipe asks of its buffer."""

    max_staleness: int = Field(ge=0, description="policy versions a token may lie behind")


def build_replay_buffer(settings: ReplayBufferSettings, context: BuildContext) -> ReplayBuffer:
    return ReplayBuffer(settings.max_staleness)


REPLAY_BUFFER: Component[ReplayBuffer] = Component(
    name="fifo",
    settings=ReplayBufferSettings,
    build=build_replay_buffer,
    summary="first in, first out, within a bound on staleness",
)


def replay_buffer(max_staleness: int) -> Selection[ReplayBuffer]:
    """The buffer of a recipe with that bound."""
    return Selection(
        family="replay_buffer",
        component=REPLAY_BUFFER,
        settings=ReplayBufferSettings(max_staleness=max_staleness),
    )
