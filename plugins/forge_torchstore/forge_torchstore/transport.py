"""Transport ``torchstore``: weights through TorchStore, sharded or whole, on one host or several.

A rank copies what it publishes into memory that other processes of its host can map. Whole tensors
are put into TorchStore many at a time, as packs of bytes; shards one by one, as the distributed
tensors they are, so that TorchStore reads them whole or in another layout. A version can be fetched
once every rank's puts have returned (``registry``). On the storage's host no bytes are sent but
where they lie (``shared_volume``), elsewhere the bytes themselves.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torchstore
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import ActorError, get_or_spawn_controller, this_host, this_proc
from torch.distributed.tensor import DTensor

from forge_core import RunFailed, WeightManifest
from forge_tensors.checksum import RunningChecksum
from forge_torchstore.layouts import as_stored, shard_of, slice_of, whole, whole_slice, with_local
from forge_torchstore.registry import Member, Registry
from forge_torchstore.segments import Segment, forget_segments
from forge_torchstore.settings import Storage
from forge_torchstore.version_index import Entry, Index, Packed, pack_key, tensor_key

PACK_BYTES = 64 * 2**20
"""A pack is closed when it has this many; a larger tensor has one of its own."""

AHEAD = 8
"""Gets under way beside the tensor that is read: each waits for several messages."""

SPARE_BUFFERS = 2
"""Buffers of removed versions kept for the next ones: fresh memory is several times slower."""


@dataclass(eq=False, slots=True)
class _Buffers:
    """Memory of one attempt on this rank. Apart, so that packs have no shards between them."""

    whole: Segment = field(default_factory=Segment)
    shards: Segment = field(default_factory=Segment)

    def clear(self) -> None:
        self.whole.clear()
        self.shards.clear()


@dataclass(slots=True)
class _Draft:
    """What a rank has copied of a version, and is about to put."""

    rank: int
    entries: list[Entry] = field(default_factory=list)
    packs: list[tuple[int, int]] = field(default_factory=list)
    """Where each begins and ends, in bytes."""
    shards: dict[str, DTensor] = field(default_factory=dict)

    def pack(self, begin: int, size: int) -> Packed:
        """Say in which pack so many bytes are that begin there: the last one, or a new one."""
        if not self.packs or begin + size - self.packs[-1][0] > PACK_BYTES:
            self.packs.append((begin, begin))
        start, _ = self.packs[-1]
        self.packs[-1] = (start, begin + size)
        return Packed(self.rank, len(self.packs) - 1, begin - start)


class TorchStoreTransport:
    """One end of a channel; all ends are in one Monarch world.

    With ``world_size`` above 1, every rank publishes its part of each version: distributed tensors
    of which it has a shard, and whole tensors, of which the lowest rank's are taken.

    Args:
        channel: ends with the same channel see the same versions.
        storage: where the first publisher has storage opened.
        rank: of this process among those that publish together.
        world_size: how many those are.
    """

    sharded = True

    def __init__(
        self, channel: str, *, storage: Storage = "process", rank: int = 0, world_size: int = 1
    ) -> None:
        digest = hashlib.blake2b(channel.encode(), digest_size=8).hexdigest()
        self._store = f"forge_weights_{digest}"
        self._storage = storage
        self._rank = rank
        self._world_size = world_size
        self._member = Member.here(uuid.uuid4().hex)
        self._buffers: dict[str, _Buffers] = {}  # by the attempt they were last used for
        self._client_of_store: Any = None
        self._closed = False
        self._registry: Any = _now(
            get_or_spawn_controller(f"{self._store}_registry", Registry, self._store)
        )
        _now(self._registry.join.call_one(self._member))
        # Monarch knows by a context variable which actor it is called from. A fetch from another
        # thread does not have that variable, and would begin a world of its own.
        self._world = contextvars.copy_context()

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        """Copy this rank's weights and put them. See ``forge_core.Transport``.

        Raises:
            ValueError: the version is not higher than the last, a name comes twice, or a tensor's
                shards are summands.
            RunFailed: the storage has died.
        """
        host = self._world.copy().run(this_host)
        process = self._world.copy().run(this_proc) if self._storage == "colocated" else None
        attempt, held = await self._ask(
            "begin", version, self._rank, self._world_size, host, process
        )
        buffers = self._take_buffers(held)
        self._buffers[attempt] = buffers
        try:
            with RunningChecksum() as running:
                draft = _drafted(self._rank, weights, buffers, running)
            await self._put(attempt, draft, buffers)
            if self._rank > 0:
                manifest: WeightManifest = await self._ask(
                    "stage_and_wait", attempt, self._rank, tuple(draft.entries)
                )
                return manifest
            index = await self._ask("stage", attempt, self._rank, tuple(draft.entries))
            if self._world_size > 1 or draft.shards:
                with RunningChecksum() as running:  # of tensors that only the store has whole
                    async for name, tensor in self._read(index):
                        running.add(name, tensor)
            return await self._ask("commit", attempt, running.result())  # type: ignore[no-any-return]
        except BaseException as error:
            await self._ask("abandon", attempt, self._rank, f"{type(error).__name__}: {error}")
            raise

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield whole tensors, valid until the next one is asked for. Not writable.

        Raises:
            KeyError: no such version, or it was dropped.
            RunFailed: the storage has died.
        """
        fetch, index = await self._ask("open", version, self._member.id)
        try:
            async for item in self._read(index):
                yield item
        finally:
            await self._ask("close", fetch)

    async def fetch_into(self, version: int, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill tensors of a version's in place, distributed ones in the layout they have.

        Args:
            version: its number.
            targets: by name; every rank of a distributed one calls this.

        Raises:
            KeyError: no such version, or it has no tensor of that name.
            RunFailed: the storage has died.
        """
        fetch, index = await self._ask("open", version, self._member.id)
        try:
            entries = {entry.name: entry for entry in index.entries}
            for name, target in targets.items():
                if name not in entries:
                    raise KeyError(f"version {version} has no tensor {name!r}")
                await self._fill(target, entries[name], index)
        finally:
            await self._ask("close", fetch)

    async def drop(self, version: int) -> None:
        """Forget a version; its memory is used again once no fetch reads it."""
        await self._ask("drop", version)

    async def versions(self) -> list[int]:
        """Versions that can be fetched, lowest first."""
        return await self._ask("versions")  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Leave the channel; the last end shuts TorchStore down and ends its process."""
        if self._closed:
            return
        await self._ask("leave", self._member.id)
        self._closed = True
        self._client_of_store = None
        self._buffers.clear()
        forget_segments()

    def _take_buffers(self, held: frozenset[str]) -> _Buffers:
        """Buffers that are not read any more, or else new ones."""
        free = [attempt for attempt in self._buffers if attempt not in held]
        for attempt in free[SPARE_BUFFERS:]:
            del self._buffers[attempt]
        if not free:
            return _Buffers()
        buffers = self._buffers.pop(free[0])
        buffers.clear()
        return buffers

    async def _put(self, attempt: str, draft: _Draft, buffers: _Buffers) -> None:
        client = await self._client()
        limit = asyncio.Semaphore(AHEAD)

        async def put(key: str, tensor: torch.Tensor) -> None:
            async with limit:
                await self._guarded(client.put, key, tensor)

        packs = {
            pack_key(attempt, self._rank, number): buffers.whole.part(begin, end)
            for number, (begin, end) in enumerate(draft.packs)
        }
        shards = {tensor_key(attempt, name): shard for name, shard in draft.shards.items()}
        await asyncio.gather(*(put(*item) for item in {**packs, **shards}.items()))

    async def _read(self, index: Index) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The tensors of a version in their order; several are on their way at a time."""
        client = await self._client()
        last = {index.key(entry): position for position, entry in enumerate(index.entries)}
        wanted = iter({index.key(entry): entry for entry in index.entries}.items())
        under_way: dict[str, asyncio.Task[torch.Tensor]] = {}
        try:
            for position, entry in enumerate(index.entries):
                key = index.key(entry)
                while key not in under_way or len(under_way) <= AHEAD:
                    following = next(wanted, None)
                    if following is None:
                        break
                    get = self._guarded(_get, client, *following)
                    under_way[following[0]] = asyncio.ensure_future(get)
                tensor = await under_way[key]
                yield entry.name, _unpacked(tensor, entry)
                if last[key] == position:
                    del under_way[key]
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)

    async def _fill(self, target: torch.Tensor, entry: Entry, index: Index) -> None:
        client = await self._client()
        if not isinstance(target, DTensor):
            tensor = await self._guarded(_get, client, index.key(entry), entry)
            target.detach().copy_(_unpacked(tensor, entry))
            return
        local = target.to_local().detach()
        if local.numel() == 0:
            return
        if entry.packed is None:
            stored = with_local(target, as_stored(local))
            await self._guarded(client.get, index.key(entry), stored)
            return
        pack = await self._guarded(_get, client, index.key(entry), entry)
        part = slice_of(target)
        tensor = _unpacked(pack, entry)
        for dim, (begin, size) in enumerate(zip(part.offsets, part.local_shape, strict=True)):
            tensor = tensor.narrow(dim, begin, size)
        local.copy_(tensor)

    async def _client(self) -> Any:
        """TorchStore's own client, once storage is open."""
        if self._client_of_store is None:
            torchstore.reset_client(self._store)  # this process may have one of an earlier life
            self._client_of_store = await self._guarded(torchstore.client, self._store)
        return self._client_of_store

    async def _ask(self, endpoint: str, *args: Any) -> Any:
        """Call the registry.

        Raises:
            RuntimeError: the transport is closed.
            Exception: what the registry raised.
        """
        if self._closed:
            raise RuntimeError("the transport is closed")
        return await self._guarded(getattr(self._registry, endpoint).call_one, *args)

    async def _guarded(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Make a remote call, as the actor that the transport was built in.

        Raises:
            RunFailed: the storage has died.
            Exception: what was raised at the other end.
        """

        async def call() -> Any:
            return await function(*args)

        try:
            return await asyncio.create_task(call(), context=self._world.copy())
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, ActorError):
                cause = cause.exception
            # TorchStore says KeyError for whatever goes wrong, so what the registry saw counts.
            death = await self._world.copy().run(self._registry.death.call_one)
            if death or isinstance(cause, SupervisionError):
                reason = death or " ".join(str(cause).split())
                raise RunFailed(
                    f"the storage died, and the weights with it: {reason}",
                    component="transport torchstore",
                ) from error
            raise cause from None


def _drafted(
    rank: int,
    weights: Iterable[tuple[str, torch.Tensor]],
    buffers: _Buffers,
    running: RunningChecksum,
) -> _Draft:
    """Copy a rank's weights into its buffers, and add the whole ones to the checksum."""
    draft = _Draft(rank)
    names = set()
    for name, weight in weights:
        if name in names:
            raise ValueError(f"tensor {name!r} is published twice in one version")
        names.add(name)
        packed = None
        shard = shard_of(name, weight)
        if shard is not None:
            _, part = buffers.shards.store(as_stored(shard.to_local().detach()))
            draft.shards[name] = with_local(shard, part)
        else:
            begin, copy = buffers.whole.store(whole(weight))
            running.add(name, copy)
            packed = draft.pack(begin, copy.nbytes)
        draft.entries.append(Entry(name, weight.dtype, tuple(weight.shape), packed))
    return draft


async def _get(client: Any, key: str, entry: Entry) -> torch.Tensor:
    if entry.packed is not None:
        return await client.get(key)  # type: ignore[no-any-return]
    return await client.get(  # type: ignore[no-any-return]
        key, tensor_slice_spec=whole_slice(entry.shape)
    )


def _unpacked(stored: torch.Tensor, entry: Entry) -> torch.Tensor:
    """An entry's tensor, from what its key has."""
    if entry.packed is None:
        return stored.view(entry.dtype)
    begin = entry.packed.offset
    return stored[begin : begin + entry.bytes].view(entry.dtype).view(entry.shape)


def _now(call: Any) -> Any:
    """Wait for a call of Monarch's, also where an event loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, call.get).result()
