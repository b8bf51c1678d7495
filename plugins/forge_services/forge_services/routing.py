"""Which replica a call goes to.

A router sees the replicas in rotation and chooses one, or none if the call has to wait. All are
deterministic in the order of calls; ties go to the lowest index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forge_core import RoutingName
from forge_services.replica import LiveReplica

BLOCK = 16
"""Tokens (or items of any other sequence) that prefixes are compared by."""

REMEMBERED_BLOCKS = 1 << 16
"""Blocks of prompts whose replica is remembered, newest first."""


@dataclass(frozen=True, slots=True)
class RoutedCall:
    """What a router may know of a call.

    Args:
        argument: its first positional argument, such as the prompt; None without one.
        before: the replica that took the last call of the same task, or of the one that had
            started it by then.
    """

    argument: Any = None
    before: LiveReplica | None = None


class Router(Protocol):
    """A router; one object for each service."""

    def choose(
        self, call: RoutedCall, healthy: Mapping[int, LiveReplica], free: Collection[LiveReplica]
    ) -> LiveReplica | None:
        """The replica for a call, which is then given to it; None: the call waits.

        Args:
            call: the one that is first in line.
            healthy: all replicas in rotation, by index.
            free: those of them with a free place; at least one.
        """
        ...


def least_loaded(free: Collection[LiveReplica]) -> LiveReplica:
    """The one with the fewest calls in flight."""
    return min(free, key=lambda live: (live.in_flight, live.index))


class LeastLoaded:
    """The replica with the fewest calls in flight."""

    def choose(
        self, call: RoutedCall, healthy: Mapping[int, LiveReplica], free: Collection[LiveReplica]
    ) -> LiveReplica | None:
        return least_loaded(free)


class RoundRobin:
    """Each in turn; full ones are skipped."""

    def __init__(self) -> None:
        self._last = -1

    def choose(
        self, call: RoutedCall, healthy: Mapping[int, LiveReplica], free: Collection[LiveReplica]
    ) -> LiveReplica | None:
        live = min(free, key=lambda live: (live.index <= self._last, live.index))
        self._last = live.index
        return live


class Sticky:
    """A task's calls, and those of the tasks it starts after its first, stay on one replica: the
    turns of an episode find their cache there. The first goes to the least loaded one, and so does
    the next after that replica died. A call waits while its replica is full.
    """

    def choose(
        self, call: RoutedCall, healthy: Mapping[int, LiveReplica], free: Collection[LiveReplica]
    ) -> LiveReplica | None:
        before = call.before
        if before is None or healthy.get(before.index) is not before:
            return least_loaded(free)
        return before if before in free else None


class PrefixRouting:
    """The replica that was given the longest part of the prompt before, by blocks of ``BLOCK``
    tokens: its prefix cache holds them. Where none was, or that one is full, the least loaded.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()  # hash of a prefix -> replica

    def choose(
        self, call: RoutedCall, healthy: Mapping[int, LiveReplica], free: Collection[LiveReplica]
    ) -> LiveReplica | None:
        prefixes = _prefixes(call.argument)
        by_index = {live.index: live for live in free}
        known = (by_index.get(self._seen.get(prefix, -1)) for prefix in reversed(prefixes))
        live = next((found for found in known if found is not None), None) or least_loaded(free)
        for prefix in prefixes:
            self._seen[prefix] = live.index
            self._seen.move_to_end(prefix)
        while len(self._seen) > REMEMBERED_BLOCKS:
            self._seen.popitem(last=False)
        return live


def _prefixes(argument: object) -> list[int]:
    """A hash for each whole number of blocks that a sequence begins with, shortest first."""
    if not isinstance(argument, Sequence):
        return []
    hashes = []
    so_far = 0
    for end in range(BLOCK, len(argument) + 1, BLOCK):
        so_far = hash((so_far, tuple(argument[end - BLOCK : end])))
        hashes.append(so_far)
    return hashes


ROUTERS: Mapping[RoutingName, Callable[[], Router]] = {
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "sticky": Sticky,
    "prefix": PrefixRouting,
}
"""Name in a config -> router."""
