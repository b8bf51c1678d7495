"""How fast weights travel: ``python benchmarks/transports.py``.

Moves fp32 weights between two processes of this host (``memory``: within one) and compares the
transports with TorchStore alone, with files on disk and with a plain copy, in the same run:

- first put: publishing into fresh memory; put: the median of later ones, checksum included;
- get: a fetch into new tensors; in place: a fetch into existing tensors, as a generator does it;
- both: a put and a get in place, the journey from the trainer's tensors into the generator's;
- of a copy: the same journey against two plain copies into existing tensors.

TorchStore alone is in the same layout of processes (one that puts, one that stores, one that gets),
by its own ``put_state_dict`` and ``get_state_dict``, which go tensor by tensor, and by its ``put``
and ``get`` of all tensors at a time; Forge is compared with the faster. Neither it nor the files
take a checksum. Files are not synced: they are read from the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from forge_core import Transport
from forge_tensors.checksum import checksum
from forge_testing.context import bare_context
from forge_torch.settings import MemorySettings, ShmSettings
from forge_torch.transports.memory import MemoryTransport
from forge_torch.transports.shm import ShmTransport
from forge_torchstore import torchstore_api

NAMES = {
    "memory": "`memory`",
    "shm": "`shm`",
    "torchstore": "`torchstore`",
    "alone": "TorchStore alone, a state dict",
    "alone_together": "TorchStore alone, all tensors at a time",
    "torch_save": "files: torch.save, torch.load(mmap)",
    "safetensors": "files: safetensors",
}
"""What is measured, and what it is called in the table."""

ON_MONARCH = ("torchstore", "alone", "alone_together")
"""Those whose other end is a process that Monarch starts."""

Weights = list[tuple[str, torch.Tensor]]


class Files:
    """Whole files, for comparison. No checksum.

    Args:
        folder: where they lie.
        way: ``torch_save`` or ``safetensors``.
    """

    def __init__(self, folder: Path, way: str) -> None:
        self.folder = folder
        self.way = way

    async def publish(self, version: int, weights: Weights) -> None:
        if self.way == "torch_save":
            torch.save(dict(weights), self.folder / str(version))
        else:
            save_file(dict(weights), self.folder / str(version))

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        file = self.folder / str(version)
        loaded = (
            torch.load(file, mmap=True, weights_only=True)
            if self.way == "torch_save"
            else load_file(file)
        )
        for item in loaded.items():
            yield item

    async def drop(self, version: int) -> None:
        (self.folder / str(version)).unlink(missing_ok=True)

    async def close(self) -> None:
        pass


class Alone:
    """TorchStore's own calls, with one storage process, for comparison. No checksum.

    Args:
        store: name of the store.
        together: all tensors at a time; else one by one, as TorchStore does with a state dict.
    """

    def __init__(self, store: str, *, together: bool) -> None:
        self.store = store
        self.together = together

    async def publish(self, version: int, weights: Weights) -> None:
        import torchstore

        if version == 0:
            await torchstore.initialize(store_name=self.store)
        if self.together:
            client = await torchstore.client(self.store)
            await asyncio.gather(*(client.put(f"{version}/{name}", t) for name, t in weights))
        else:
            await torchstore.put_state_dict(dict(weights), f"{version}", store_name=self.store)

    async def get(self, version: int, into: Weights) -> None:
        """Fill the tensors."""
        import torchstore

        if self.together:
            client = await torchstore.client(self.store)
            await asyncio.gather(*(client.get(f"{version}/{name}", t) for name, t in into))
        else:
            await torchstore.get_state_dict(f"{version}", dict(into), store_name=self.store)

    async def get_new(self, version: int, names: Iterable[str]) -> list[torch.Tensor]:
        """Tensors of its own making."""
        import torchstore

        if self.together:
            client = await torchstore.client(self.store)
            return await asyncio.gather(*(client.get(f"{version}/{name}") for name in names))
        state = await torchstore.get_state_dict(f"{version}", store_name=self.store)
        return list(state.values())

    async def drop(self, version: int) -> None:
        import torchstore

        client = await torchstore.client(self.store)
        for key in await client.keys(f"{version}/") if version >= 0 else ():
            await client.delete(key)

    async def close(self) -> None:
        pass


End = Transport | Files | Alone


def make(way: str, place: str) -> End:
    if way == "memory":
        return MemoryTransport(MemorySettings(), bare_context(channel=place))
    if way == "shm":
        return ShmTransport(ShmSettings(), bare_context(channel=place))
    if way in ("torch_save", "safetensors"):
        return Files(Path(place), way)
    torchstore_api.load()
    if way in ("alone", "alone_together"):
        return Alone(f"alone-{Path(place).name}", together=way == "alone_together")
    from forge_torchstore.transport import TorchStoreTransport

    return TorchStoreTransport(place)


def make_weights(megabytes: int, tensors: int) -> Weights:
    size = megabytes * 10**6 // 4 // tensors
    return [(f"layer.{index}.weight", torch.randn(size)) for index in range(tensors)]


async def get(end: End, version: int, into: Weights) -> tuple[float, float]:
    """Seconds of a get and of a get in place; the second's result is checked by the caller."""
    targets = dict(into)
    start = time.perf_counter()
    if isinstance(end, Alone):
        copies: Any = await end.get_new(version, targets)
    else:
        copies = [tensor.clone() async for _, tensor in end.fetch(version)]
    seconds = time.perf_counter() - start
    del copies
    start = time.perf_counter()
    if isinstance(end, Alone):
        await end.get(version, into)
    else:
        async for name, tensor in end.fetch(version):
            targets[name].copy_(tensor)
    return seconds, time.perf_counter() - start


async def serve(way: str, place: str, megabytes: int, tensors: int, pipe: Connection) -> None:
    """The other process: answers each version with the seconds of both gets and a checksum."""
    torch.set_num_threads(1)
    into = make_weights(megabytes, tensors)
    end = make(way, place)
    pipe.send("ready")
    while (version := pipe.recv()) is not None:
        pipe.send((*await get(end, version, into), checksum(into)))
    await end.close()
    pipe.send("closed")


def reader(address: str, *arguments: Any) -> None:
    with Client(address, family="AF_UNIX") as pipe:
        asyncio.run(serve(*arguments, pipe))


@asynccontextmanager
async def other_process(way: str, place: str, *arguments: Any) -> AsyncIterator[Connection]:
    """Our end of a pipe to a process in which ``serve`` runs."""
    address = f"{place}/pipe"
    with Listener(address, family="AF_UNIX") as listener:
        if way in ON_MONARCH:
            start = on_monarch(address, way, place, *arguments)
        else:
            start = spawned(address, way, place, *arguments)
        async with start:
            with listener.accept() as pipe:
                pipe.recv()
                yield pipe
                pipe.send(None)
                pipe.recv()


@asynccontextmanager
async def spawned(*arguments: Any) -> AsyncIterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=reader, args=arguments)
    process.start()
    yield
    process.join()


@asynccontextmanager
async def on_monarch(address: str, *arguments: Any) -> AsyncIterator[None]:
    torchstore_api.load()
    from monarch.actor import Actor, concurrent_endpoint, this_host

    class Reader(Actor):
        @concurrent_endpoint
        async def run(self) -> None:
            with Client(address, family="AF_UNIX") as pipe:
                await serve(*arguments, pipe)

    procs = this_host().spawn_procs(per_host={"procs": 1})
    running = asyncio.ensure_future(procs.spawn("reader", Reader).run.call_one())
    yield
    await running
    await procs.stop()


async def measure(way: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each round: ``put``, ``get``, ``in place``."""
    place = tempfile.mkdtemp(prefix="bench-", dir=options.disk)
    if way == "memory":
        into = make_weights(options.megabytes, options.tensors)
        seconds = await rounds(way, place, options, None, into)
    else:
        sizes = options.megabytes, options.tensors
        async with other_process(way, place, *sizes) as pipe:
            seconds = await rounds(way, place, options, pipe, [])
    shutil.rmtree(place)
    return seconds


async def rounds(
    way: str, place: str, options: argparse.Namespace, other: Connection | None, into: Weights
) -> dict[str, list[float]]:
    weights = make_weights(options.megabytes, options.tensors)
    end = make(way, place)
    seconds: dict[str, list[float]] = {"put": [], "get": [], "in place": []}
    for version in range(options.rounds):
        weights[0][1].add_(1)
        expected = checksum(weights)
        start = time.perf_counter()
        await end.publish(version, weights)
        seconds["put"].append(time.perf_counter() - start)
        if other is None:
            cloned, in_place = await get(end, version, into)
            digest = checksum(into)
        else:
            other.send(version)
            cloned, in_place, digest = await asyncio.to_thread(other.recv)
        if digest != expected:
            sys.exit(f"{way}: version {version} did not arrive as it was sent")
        seconds["get"].append(cloned)
        seconds["in place"].append(in_place)
        await end.drop(version - 1)
    await end.close()
    return seconds


def measure_copy(options: argparse.Namespace) -> dict[str, list[float]]:
    """A plain copy into fresh memory, into the same memory again, and a checksum alone."""
    weights = make_weights(options.megabytes, options.tensors)
    into: Weights = []
    seconds: dict[str, list[float]] = {"put": [], "get": [], "in place": []}
    for _ in range(options.rounds):
        start = time.perf_counter()
        copies = [tensor.clone() for _, tensor in weights]
        seconds["get"].append(time.perf_counter() - start)
        into = into or list(zip((name for name, _ in weights), copies, strict=True))
        start = time.perf_counter()
        for (_, target), (_, tensor) in zip(into, weights, strict=True):
            target.copy_(tensor)
        seconds["in place"].append(time.perf_counter() - start)
        start = time.perf_counter()
        checksum(weights)
        seconds["put"].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9, help="at least 3; two are warm-up")
    parser.add_argument("--disk", help="folder for the files; default: that of temporary files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    copy = measure_copy(options)
    rows = {way: asyncio.run(measure(way, options)) for way in NAMES}

    def rate(seconds: list[float]) -> str:
        median, best = statistics.median(seconds), min(seconds)
        return f"{options.megabytes / median:,.0f} ({options.megabytes / best:,.0f})"

    def journeys(seconds: dict[str, list[float]]) -> list[float]:
        """Of each round: a put and a get in place. The second buffer is fresh too."""
        return [p + g for p, g in zip(seconds["put"][2:], seconds["in place"][2:], strict=True)]

    print(f"{options.megabytes} MB of fp32 in {options.tensors} tensors; MB/s, median (best)")
    print("| way | first put | put | get | get in place | both | of a copy |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(f"| plain copy, one thread | | | {rate(copy['get'])} | {rate(copy['in place'])} | | |")
    two_copies = 2 * statistics.median(copy["in place"])
    for way, seconds in rows.items():
        first = f"{options.megabytes / seconds['put'][0]:,.0f}"
        later = [rate(values[2:]) for values in (*seconds.values(), [0, 0, *journeys(seconds)])]
        share = f"{two_copies / statistics.median(journeys(seconds)):.2f}"
        print(f"| {NAMES[way]} | {first} | {' | '.join(later)} | {share} |")
    alone = min(statistics.median(journeys(rows[way])) for way in ("alone", "alone_together"))
    ratio = alone / statistics.median(journeys(rows["torchstore"]))
    print(f"torchstore moves weights {ratio:.2f} times as fast as TorchStore alone")
    print(f"checksum alone: {rate(copy['put'])} MB/s")


if __name__ == "__main__":
    main()
