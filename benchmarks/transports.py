"""How fast weights travel: ``python benchmarks/transports.py``.

Moves fp32 weights between two processes of this host (``memory``: within one) and compares the
transports with files in the memory file system and with a plain copy, in the same run:

- first put: publishing into fresh memory; put: the median of later ones, checksum included;
- get: a fetch that clones every tensor; in place: a fetch that copies into existing tensors.
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
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from forge_core import WeightManifest
from forge_core.protocols import Transport
from forge_core.tensors.checksum import checksum
from forge_torch.transports.memory import MemoryTransport
from forge_torch.transports.shm import ShmTransport

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


def make(way: str, place: str) -> Transport:
    if way == "memory":
        return MemoryTransport(place)
    if way == "shm":
        return ShmTransport(place)
    return Files(Path(place))


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


def reader(way: str, place: str, megabytes: int, tensors: int, pipe: Connection) -> None:
    """The other process: answers each version with the seconds of both gets and a checksum."""

    async def serve() -> None:
        into = make_weights(megabytes, tensors)
        end = make(way, place)
        pipe.send("ready")
        while (version := pipe.recv()) is not None:
            pipe.send((*await get(end, version, into), checksum(into)))
        await end.close()

    torch.set_num_threads(1)
    asyncio.run(serve())


async def measure(way: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each round: ``put``, ``get``, ``in place``."""
    weights = make_weights(options.megabytes, options.tensors)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    place = tempfile.mkdtemp(prefix="bench-", dir="/dev/shm")
    end = make(way, place)
    other = None
    into: Weights = []
    if way == "memory":
        into = make_weights(options.megabytes, options.tensors)
    else:
        arguments = (way, place, options.megabytes, options.tensors, theirs)
        other = context.Process(target=reader, args=arguments)
        other.start()
        ours.recv()
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
            ours.send(version)
            cloned, in_place, digest = ours.recv()
        if digest != expected:
            sys.exit(f"{way}: version {version} did not arrive as it was sent")
        seconds["get"].append(cloned)
        seconds["in place"].append(in_place)
        await end.drop(version - 1)
    if other is not None:
        ours.send(None)
        other.join()
    await end.close()
    shutil.rmtree(place)
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
    rows = [(way, asyncio.run(measure(way, options))) for way in ("memory", "shm", "files")]

    def rate(seconds: list[float]) -> str:
        median, best = statistics.median(seconds), min(seconds)
        return f"{options.megabytes / median:,.0f} ({options.megabytes / best:,.0f})"

    print(f"{options.megabytes} MB of fp32 in {options.tensors} tensors; MB/s, median (best)")
    print("| way | first put | put | get | get in place |")
    print("| --- | ---: | ---: | ---: | ---: |")
    print(f"| plain copy, one thread | | | {rate(copy['get'])} | {rate(copy['in place'])} |")
    for way, seconds in rows:
        first = f"{options.megabytes / seconds['put'][0]:,.0f}"
        later = [rate(values[2:]) for values in seconds.values()]  # the second buffer is fresh too
        name = "torch.save, torch.load(mmap)" if way == "files" else way
        print(f"| {name} | {first} | {' | '.join(later)} |")
    print(f"checksum alone: {rate(copy['put'])} MB/s")


if __name__ == "__main__":
    main()
