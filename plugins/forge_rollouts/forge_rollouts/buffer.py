"""The replay buffer: finished groups of episodes that wait for their training step.

First in, first out by the run's order of tasks, and never older than a bound: the windowed buffer
of asynchronous reinforcement learning, with the staleness bound of AReaL (arXiv:2505.24298,
section 5.1) in place of a number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_core import Group
from forge_rollouts.settings import ReplayBufferSettings


@dataclass(frozen=True, slots=True)
class Taken:
    """What left the buffer in one ``take``.

    Args:
        groups: handed out, by place, lowest first.
        dropped: places of those that were too old.
    """

    groups: Mapping[int, Group]
    dropped: tuple[int, ...] = ()


class ReplayBuffer:
    """Keeps each group at its place in the run's order of tasks (0, 1, 2, ...) until it is taken.

    Groups are finished in any order and leave in that of their places, each once.

    Args:
        settings: most policy versions that the oldest token of a group may lie behind the
            version it is trained on.
    """

    def __init__(self, settings: ReplayBufferSettings) -> None:
        self.max_staleness = settings.max_staleness
        self._groups: dict[int, Group] = {}

    def add(self, place: int, group: Group) -> None:
        """Keep a finished group: all its episodes are there, with their rewards.

        Raises:
            ValueError: there is a group at that place.
        """
        if place in self._groups:
            raise ValueError(f"the replay buffer already has a group at place {place}")
        self._groups[place] = group

    def take(self, end: int, current_version: int) -> Taken:
        """Hand out the groups at places below ``end``, and drop those of them that are too old.

        Args:
            end: first place that is left alone.
            current_version: of the weights that are about to be trained.
        """
        leaving = {place: self._groups.pop(place) for place in sorted(self._groups) if place < end}
        oldest_allowed = current_version - self.max_staleness
        dropped = tuple(
            place for place, group in leaving.items() if oldest_version(group) < oldest_allowed
        )
        for place in dropped:
            del leaving[place]
        return Taken(leaving, dropped)

    def places(self) -> list[int]:
        """Where there is a group, lowest first."""
        return sorted(self._groups)

    def state(self) -> dict[int, Group]:
        """Everything that is kept, by place, lowest first; ``load`` takes it back."""
        return {place: self._groups[place] for place in sorted(self._groups)}

    def load(self, groups: Mapping[int, Group]) -> None:
        """Keep these groups in place of whatever is kept now."""
        self._groups = dict(groups)


def oldest_version(group: Group) -> float:
    """Policy version of the group's oldest sampled token; infinity where none was sampled."""
    return min(
        (
            int(turn.completion.versions.min())
            for episode in group.episodes
            for turn in episode.turns
            if turn.completion is not None and len(turn.completion.versions)
        ),
        default=float("inf"),
    )
