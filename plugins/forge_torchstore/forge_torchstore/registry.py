# mypy: disable-error-code="untyped-decorator"
"""What the ends of a channel agree on: an actor in the controller's process, found by its name.

TorchStore has tensors under keys; versions, and who reads them, are kept here. A version can be
fetched from the moment it is committed, after every put of every rank has returned. Its tensors are
removed, and its memory may be written to again, once it is dropped and no fetch reads it.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchstore
from monarch.actor import Actor, ActorError, concurrent_endpoint

import forge_torchstore.compat  # noqa: F401  (patches TorchStore's classes where they need it)
from forge_core import WeightManifest
from forge_torchstore.segments import host_id
from forge_torchstore.strategy import NearestVolume
from forge_torchstore.version_index import Entry, Index


@dataclass(frozen=True, slots=True)
class Member:
    """An open end of the channel.

    Args:
        id: unique.
        host: as ``host_id`` says.
        process: its process id.
        started: when that process started, in clock ticks since the host's boot.
    """

    id: str
    host: str
    process: int
    started: str

    @classmethod
    def here(cls, id: str) -> Member:
        return cls(id, host_id(), os.getpid(), _started(os.getpid()))

    @property
    def is_known_dead(self) -> bool:
        """Whether its process has ended. Of other hosts this is not known."""
        return self.host == host_id() and _started(self.process) != self.started


def _started(process: int) -> str:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may have spaces
    return "" if state in "ZX" else fields[18]


class _Attempt:
    """A version that is being published by one or several ranks."""

    def __init__(self, id: str, version: int, world_size: int) -> None:
        self.id = id
        self.version = version
        self.world_size = world_size
        self.begun: set[int] = set()
        self.staged: dict[int, tuple[Entry, ...]] = {}
        self.index: asyncio.Future[Index] = _promise()
        self.manifest: asyncio.Future[WeightManifest] = _promise()

    def stage(self, rank: int, entries: tuple[Entry, ...]) -> None:
        """Note what a rank put; of a whole tensor that several put, the lowest rank's counts."""
        self.staged[rank] = entries
        if len(self.staged) == self.world_size and not self.index.done():
            merged: dict[str, Entry] = {}
            for _, staged in sorted(self.staged.items()):
                for entry in staged:
                    merged.setdefault(entry.name, entry)
            self.index.set_result(Index(self.id, tuple(merged.values())))

    def fail(self, reason: str) -> None:
        """Tell the ranks that wait."""
        for promise in (self.index, self.manifest):
            if not promise.done():
                promise.set_exception(RuntimeError(reason))


def _promise() -> asyncio.Future[Any]:
    promise = asyncio.get_running_loop().create_future()
    promise.add_done_callback(lambda done: done.exception())  # whether or not anybody waits
    return promise


class Registry(Actor):  # type: ignore[misc]
    """One channel.

    Args:
        store: name of the TorchStore that belongs to the channel.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._members: dict[str, Member] = {}
        self._opening = asyncio.Lock()
        self._is_open = False
        self._procs: Any = None
        self._attempt_numbers = itertools.count()
        self._forget()

    def _forget(self) -> None:
        self._last = -1
        self._death = ""
        self._attempts: dict[str, _Attempt] = {}  # under way or failed, since the last commit
        self._publishing: dict[int, _Attempt] = {}  # those under way, by version
        self._published: dict[int, Index] = {}
        self._fetches: dict[str, tuple[str, Index]] = {}  # fetch -> who fetches, and what
        self._removable: set[str] = set()  # attempts whose tensors are to go

    @concurrent_endpoint
    async def join(self, member: Member) -> None:
        self._members[member.id] = member

    @concurrent_endpoint
    async def leave(self, member: str) -> None:
        """Forget an end; with the last one, everything."""
        self._members.pop(member, None)
        for id in [id for id, other in self._members.items() if other.is_known_dead]:
            del self._members[id]
        if self._members:
            await self._remove()
        elif self._is_open:
            await self._close()

    @concurrent_endpoint
    async def begin(
        self, version: int, rank: int, world_size: int, host: Any, colocated_with: Any
    ) -> tuple[str, frozenset[str]]:
        """A rank is about to publish. The first one that ever does gets storage opened near it.

        Args:
            version: its number.
            rank: of the publisher.
            world_size: ranks that publish the version together.
            host: mesh of the host to start a storage process on.
            colocated_with: mesh of a process that is to keep the storage instead, or None.

        Returns the attempt, and all attempts whose memory must not be written to.

        Raises:
            ValueError: the version is not higher than the last.
        """
        if version <= self._last:
            raise ValueError(
                f"version {version} is not higher than {self._last}, the last published"
            )
        attempt = self._publishing.get(version)
        if attempt is not None and rank in attempt.begun:
            self._give_up(attempt, f"rank {rank} began to publish version {version} again")
            attempt = None
        if attempt is None:
            id = f"v{version}a{next(self._attempt_numbers)}"
            attempt = _Attempt(id, version, world_size)
            self._publishing[version] = self._attempts[id] = attempt
        attempt.begun.add(rank)
        async with self._opening:
            if not self._is_open:
                await self._open(host, colocated_with)
        await self._remove()
        return attempt.id, frozenset(self._held())

    @concurrent_endpoint
    async def stage(self, attempt: str, rank: int, entries: tuple[Entry, ...]) -> Index:
        """A rank has put all that it has; returns when all ranks have.

        Raises:
            RuntimeError: another rank failed.
        """
        self._attempts[attempt].stage(rank, entries)
        return await self._attempts[attempt].index

    @concurrent_endpoint
    async def stage_and_wait(
        self, attempt: str, rank: int, entries: tuple[Entry, ...]
    ) -> WeightManifest:
        """A rank has put all that it has; returns when rank 0 has committed the version.

        Raises:
            RuntimeError: another rank failed.
        """
        self._attempts[attempt].stage(rank, entries)
        return await self._attempts[attempt].manifest

    @concurrent_endpoint
    async def commit(self, attempt: str, checksum: str) -> WeightManifest:
        """Make a version that all ranks have staged one that can be fetched."""
        done = self._attempts[attempt]
        index = done.index.result()
        manifest = WeightManifest(done.version, checksum, len(index.entries), index.bytes)
        self._published[done.version] = index
        self._last = done.version
        del self._publishing[done.version]
        for earlier in [other for other in self._publishing.values() if other.version < self._last]:
            self._give_up(earlier, f"version {self._last} was published before it")
        self._attempts = {other.id: other for other in self._publishing.values()}
        done.manifest.set_result(manifest)
        return manifest

    @concurrent_endpoint
    async def abandon(self, attempt: str, rank: int, reason: str) -> None:
        """A rank failed: nothing is published, and the other ranks are informed."""
        failed = self._attempts.get(attempt)
        if failed is not None and self._publishing.get(failed.version) is failed:
            self._give_up(
                failed, f"rank {rank} failed to publish version {failed.version}: {reason}"
            )
            await self._remove()

    @concurrent_endpoint
    async def versions(self) -> list[int]:
        return sorted(self._published)

    @concurrent_endpoint
    async def drop(self, version: int) -> None:
        dropped = self._published.pop(version, None)
        if dropped is not None:
            self._removable.add(dropped.attempt)
            await self._remove()

    @concurrent_endpoint
    async def open(self, version: int, member: str) -> tuple[str, Index]:
        """Begin a fetch: until ``close`` the version's tensors stay as they are.

        Raises:
            KeyError: no such version, or it was dropped.
        """
        if version not in self._published:
            raise KeyError(f"no version {version} (there are: {sorted(self._published)})")
        fetch = uuid.uuid4().hex
        self._fetches[fetch] = (member, self._published[version])
        return fetch, self._published[version]

    @concurrent_endpoint
    async def close(self, fetch: str) -> None:
        """End a fetch."""
        self._fetches.pop(fetch, None)
        await self._remove()

    @concurrent_endpoint
    async def death(self) -> str:
        """How the storage died, empty while it lives."""
        return self._death

    async def __supervise__(self, failure: Any) -> bool:
        """The storage is ours; its death is reported to its users, and ends nothing else."""
        if not failure.mesh_name.startswith("logger"):
            self._death = f"{failure.mesh_name}: {failure.report().splitlines()[-1].strip()}"
        return True

    def _give_up(self, attempt: _Attempt, reason: str) -> None:
        del self._publishing[attempt.version]
        attempt.fail(reason)
        self._removable.add(attempt.id)

    def _held(self) -> set[str]:
        """Attempts whose tensors somebody publishes, may fetch, or fetches."""
        fetched = [index.attempt for _, index in self._fetches.values()]
        published = [index.attempt for index in self._published.values()]
        return {*fetched, *published, *(attempt.id for attempt in self._publishing.values())}

    async def _remove(self) -> None:
        """Remove tensors that will not be read any more, those of killed readers too."""
        dead = {id for id, member in self._members.items() if member.is_known_dead}
        self._fetches = {
            fetch: (id, index)
            for fetch, (id, index) in self._fetches.items()
            if id in self._members and id not in dead
        }
        removed = self._removable - self._held()
        self._removable -= removed
        if removed and self._is_open and not self._death:
            client = await torchstore.client(self._store)
            keys = [key for attempt in removed for key in await client.keys(attempt)]
            await asyncio.gather(*(_delete(client, key) for key in keys))

    async def _open(self, host: Any, colocated_with: Any) -> None:
        mesh = colocated_with
        if mesh is None:
            mesh = self._procs = host.spawn_procs(
                per_host={"storage": 1}, name="torchstore", bootstrap=_end_at_once
            )
        await torchstore.initialize(strategy=NearestVolume(), store_name=self._store, mesh=mesh)
        torchstore.reset_client(self._store)  # it may be one of the store's last life
        self._is_open = True

    async def _close(self) -> None:
        self._is_open = False
        procs, self._procs = self._procs, None
        died = self._death
        self._forget()
        # With dead storage TorchStore's shutdown raises, but only after it has reset its index.
        with suppress(*((Exception,) if died else ())):
            await torchstore.shutdown(self._store)
        if procs is not None:
            await procs.stop()


def _end_at_once() -> None:
    """Have a storage process, which has nothing to save, not take seconds to take torch down."""
    atexit.register(os._exit, 0)


async def _delete(client: Any, key: str) -> None:
    try:
        await client.delete(key)
    except ActorError as error:
        # TorchStore does not find a tensor that some rank never put its shard of: such a one
        # stays until the store is shut down.
        if not isinstance(error.exception, KeyError):
            raise
