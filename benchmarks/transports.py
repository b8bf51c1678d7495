"""How fast weights travel: ``python benchmarks/transports.py``.

Moves fp32 weights between two processes of this host (``memory``: within one) and compares the
transports with TorchStore alone, with files in the memory file system and with a plain copy, in the
same run:

- first put: publishing into fresh memory; put: the median of later ones, checksum included;
- get: a fetch that clones every tensor; in place: a fetch that copies into existing tensors;
- of a copy: a put and a get in place, against two plain copies into existing tensors.
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

from forge_core import WeightManifest
from forge_core.protocols import Transport
from forge_core.tensors.checksum import checksum
from forge_torch.transports.memory import MemoryTransport
from forge_torch.transports.shm import ShmTransport
from forge_torchstore import engine

NAMES = {
    "memory": "memory",
    "shm": "shm",
    "torchstore": "torchstore",
    "alone": "TorchStore alone",
    "files": "torch.save, torch.load(mmap)",
}
"""What is measured, and what it is called in the table."""

ON_MONARCH = ("torchstore", "alone")
"""Those whose other end is a process that Monarch starts."""

Weights = list[tuple[str, torch.Tensor]]


class Files:
    """``torch.save`` and ``torch.load`` of whole files, for comparison. No checksum."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        torch.save(dict(weights), self.folder / str(version))
        return WeightManifest(version, "", 0, 0)

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        for item in torch.load(self.folder / str(version), mmap=True).items():
            yield item

    async def drop(self, version: int) -> None:
        (self.folder / str(version)).unlink(missing_ok=True)

    async def versions(self) -> list[int]:
        return sorted(int(file.name) for file in self.folder.iterdir())

    async def close(self) -> None:
        pass


class Alone:
    """TorchStore's own calls, with one storage process, for comparison. No checksum."""

    def __init__(self, place: str) -> None:
        self.store = f"alone-{Path(place).name}"

    async def publish(
        self, version: int, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        import torchstore

        if version == 0:
            await torchstore.initialize(store_name=self.store)
        await torchstore.put_state_dict(dict(weights), f"{version}", store_name=self.store)
        return WeightManifest(version, "", 0, 0)

    async def fetch(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        import torchstore

        client = await torchstore.client(self.store)
        for name in await client.get(f"{version}/MAPPING"):
            yield name, await client.get(f"{version}/{name}")

    async def drop(self, version: int) -> None:
        import torchstore

        client = await torchstore.client(self.store)
        for key in await client.keys():
            if key.startswith(f"{version}/"):
                await client.delete(key)

    async def versions(self) -> list[int]:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def make(way: str, place: str) -> Transport:
    if way == "memory":
        return MemoryTransport(place)
    if way == "shm":
        return ShmTransport(place)
    if way == "files":
        return Files(Path(place))
    engine.load()
    if way == "alone":
        return Alone(place)
    from forge_torchstore.transport import TorchStoreTransport

    return TorchStoreTransport(place)


def make_weights(megabytes: int, tensors: int) -> Weights:
    size = megabytes * 10**6 // 4 // tensors
    return [(f"layer.{index}.weight", torch.randn(size)) for index in range(tensors)]


async def get(end: Transport, version: int, into: Weights) -> tuple[float, float]:
    """Seconds of a get and of a get in place; the second's result is checked by the caller."""
    start = time.perf_counter()
    copies = {name: tensor.clone() async for name, tensor in end.fetch(version)}
    seconds = time.perf_counter() - start
    del copies
    targets = dict(into)
    start = time.perf_counter()
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
    engine.load()
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
    place = tempfile.mkdtemp(prefix="bench-", dir="/dev/shm")
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
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    copy = measure_copy(options)
    rows = {way: asyncio.run(measure(way, options)) for way in NAMES}

    def rate(seconds: list[float]) -> str:
        median, best = statistics.median(seconds), min(seconds)
        return f"{options.megabytes / median:,.0f} ({options.megabytes / best:,.0f})"

    print(f"{options.megabytes} MB of fp32 in {options.tensors} tensors; MB/s, median (best)")

    def journey(seconds: dict[str, list[float]]) -> float:
        """From tensors to tensors: a put and a get in place."""
        return statistics.median(seconds["put"][2:]) + statistics.median(seconds["in place"][2:])

    print("| way | first put | put | get | get in place | of a copy |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print(f"| plain copy, one thread | | | {rate(copy['get'])} | {rate(copy['in place'])} | |")
    two_copies = 2 * statistics.median(copy["in place"])
    for way, seconds in rows.items():
        first = f"{options.megabytes / seconds['put'][0]:,.0f}"
        later = [rate(values[2:]) for values in seconds.values()]  # the second buffer is fresh too
        share = f"{two_copies / journey(seconds):.2f}"
        print(f"| {NAMES[way]} | {first} | {' | '.join(later)} | {share} |")
    ratio = journey(rows["alone"]) / journey(rows["torchstore"])
    print(f"torchstore moves weights {ratio:.2f} times as fast as TorchStore alone")
    print(f"checksum alone: {rate(copy['put'])} MB/s")


if __name__ == "__main__":
    main()
