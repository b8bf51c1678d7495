"""Weights put by two ranks with one sharding and read with another."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import distribute_tensor as distribute

from forge_core import BuildContext
from forge_tensors.checksum import checksum
from forge_torchstore.plugin import TORCHSTORE
from forge_torchstore.settings import TorchStoreSettings
from forge_torchstore.transport import TorchStoreTransport

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RANKS = 2


def full() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "rows": torch.randn(8, 6, generator=generator),
        "norm": torch.randn(6, generator=generator),
        "columns.bfloat16": torch.randn(6, 4, generator=generator).bfloat16(),
        "uneven": torch.arange(5 * 3, dtype=torch.int64).reshape(5, 3),
        "one row": torch.randn(1, 7, generator=generator),
        "float8": torch.randn(4, 4, generator=generator).to(torch.float8_e4m3fn),
        "replicated": torch.randn(3, 3, generator=generator),
        "scalar": torch.tensor(2.5),
    }


LAYOUTS: dict[str, Placement] = {
    "rows": Shard(0),
    "columns.bfloat16": Shard(1),
    "uneven": Shard(0),
    "one row": Shard(0),
    "float8": Shard(0),
    "replicated": Replicate(),
}
"""How the trainer has them; the others are whole on each rank."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def join_group(rank: int, port: int) -> None:
    address = f"tcp://127.0.0.1:{port}"
    await asyncio.to_thread(
        dist.init_process_group, "gloo", init_method=address, rank=rank, world_size=RANKS
    )


def sharded(tensor: torch.Tensor, placement: Placement) -> DTensor:
    """Distribute without the collectives that would need both ranks at once."""
    mesh = init_device_mesh("cpu", (RANKS,))
    if tensor.dtype.itemsize == 1:  # gloo has no 8-bit floats
        whole = distribute(tensor.view(torch.uint8), mesh, [placement], src_data_rank=None)
        return DTensor.from_local(
            whole.to_local().view(tensor.dtype), mesh, [placement], run_check=False
        )
    return distribute(tensor, mesh, [placement], src_data_rank=None)


def end_of(rank: int, context: BuildContext) -> TorchStoreTransport:
    return TORCHSTORE.build(TorchStoreSettings(), replace(context, rank=rank, world_size=RANKS))


async def publish(rank: int, version: int, context: BuildContext) -> Any:
    weights = full()
    end = end_of(rank, context)
    try:
        return await end.publish(
            version,
            [
                (name, sharded(tensor, LAYOUTS[name]) if name in LAYOUTS else tensor)
                for name, tensor in weights.items()
            ],
        )
    finally:
        await end.close()


async def read(rank: int, version: int, placement: Placement, context: BuildContext) -> list[str]:
    """Fetch into tensors of another layout. Returns the names of those that are wrong."""
    weights = full()
    weights.pop("scalar")  # cannot be split
    if placement == Shard(1):
        weights.pop("norm")
    end = end_of(rank, context)
    expected = {name: sharded(tensor, placement) for name, tensor in weights.items()}
    targets = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    await end.fetch_into(version, targets)
    await end.close()
    return [
        name
        for name, target in targets.items()
        if not _same(target.to_local(), expected[name].to_local())
    ]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype.itemsize == 1:
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    return torch.equal(one, other)


@pytest.mark.usefixtures("no_process_left")
async def test_put_with_one_sharding_and_read_with_others(
    workers: Any, context: BuildContext
) -> None:
    weights = full()
    driver = TORCHSTORE.build(TorchStoreSettings(), context)
    port = free_port()
    async with workers(RANKS) as ranks:

        async def on_both(function: Any, *arguments: Any) -> list[Any]:
            calls = [w.run.call_one(function, rank, *arguments) for rank, w in enumerate(ranks)]
            return await asyncio.gather(*calls)

        await on_both(join_group, port)
        manifests = await on_both(publish, 0, context)
        # The checksum is that of the whole tensors, and every rank knows it.
        assert manifests[0] == manifests[1]
        assert manifests[0].checksum == checksum(weights.items())
        assert manifests[0].tensors == len(weights)
        assert manifests[0].bytes == sum(tensor.nbytes for tensor in weights.values())

        fetched = {name: tensor.clone() async for name, tensor in driver.fetch(0)}
        assert list(fetched) == list(weights)
        assert [name for name in weights if not _same(fetched[name], weights[name])] == []
        into = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        await driver.fetch_into(0, into)
        assert [name for name in weights if not _same(into[name], weights[name])] == []

        for placement in (Shard(0), Shard(1), Replicate()):
            assert await on_both(read, 0, placement, context) == [[], []], placement

        with pytest.raises(KeyError, match="no tensor 'other'"):
            await driver.fetch_into(0, {"other": torch.empty(1)})

        # One rank fails: the other is told, nothing is published, and the next attempt succeeds.
        outcomes = await on_both(publish_failing, 1, context)
        assert outcomes == [
            "RuntimeError: rank 1 failed to publish version 1: ValueError: gather failed",
            "ValueError: gather failed",
        ]
        assert await driver.versions() == [0]
        await on_both(publish, 1, context)
        assert await driver.versions() == [0, 1]
        assert checksum([pair async for pair in clones(driver, 1)]) == manifests[0].checksum

        assert await on_both(publish_partial, 2, context) == [True, True]
    await driver.close()


async def clones(end: TorchStoreTransport, version: int) -> Any:
    async for name, tensor in end.fetch(version):
        yield name, tensor.clone()


async def publish_failing(rank: int, version: int, context: BuildContext) -> str:
    def weights() -> Any:
        yield "rows", sharded(full()["rows"], Shard(0))
        if rank == 1:
            raise ValueError("gather failed")
        yield "norm", full()["norm"]

    end = end_of(rank, context)
    try:
        await end.publish(version, weights())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await end.close()
    return "published"


async def publish_partial(rank: int, version: int, context: BuildContext) -> bool:
    mesh = init_device_mesh("cpu", (RANKS,))
    summand = DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)
    end = end_of(rank, context)
    try:
        await end.publish(version, [("gradient", summand)])
    except (ValueError, RuntimeError) as error:
        return "partial values" in str(error)
    finally:
        await end.close()
    return False
