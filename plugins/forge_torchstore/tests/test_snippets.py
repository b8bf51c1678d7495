"""What ``docs/transports.md`` and ``docs/services.md`` show, on a real mesh of processes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from monarch.actor import this_host

from forge_core import BuildContext, Component, Placement, Selection, Settings
from forge_monarch.plugin import MONARCH
from forge_monarch.settings import MonarchSettings
from forge_services import Service
from forge_torchstore import torchstore_api
from forge_torchstore.plugin import TORCHSTORE
from forge_torchstore.settings import TorchStoreSettings

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PAGE = (Path(__file__).parents[3] / "docs" / "transports.md").read_text()
BLOCKS = [
    block
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
    if "async def" in block
]
WEIGHT = torch.arange(24, dtype=torch.float32).reshape(4, 6)
RANKS = 2


class Store:
    """A trainer that stores and loads what the page shows, on each of its ranks."""

    def __init__(self, context: BuildContext) -> None:
        torch.distributed.init_process_group("gloo")
        self._shown: dict[str, Any] = {}
        for block in BLOCKS:
            exec(block, self._shown)
        self._transport = TORCHSTORE.build(TorchStoreSettings(), context)

    async def store(self) -> int:
        manifest = await self._shown["store_weights"](self._transport, WEIGHT, RANKS)
        await self._shown["store_directly"](WEIGHT, RANKS)
        return manifest.tensors

    async def load(self) -> list[torch.Tensor]:
        """The columns of this rank, twice."""
        shape = tuple(WEIGHT.shape)
        loaded = await self._shown["load_weights"](self._transport, shape, RANKS)
        directly = await self._shown["load_directly"](shape, RANKS)
        return [loaded.to_local(), directly.to_local()]

    async def close(self) -> None:
        await self._transport.close()
        torch.distributed.destroy_process_group()


class Policy:
    """A generator that fetches whole weights."""

    def __init__(self, context: BuildContext) -> None:
        self._transport = TORCHSTORE.build(TorchStoreSettings(), context)
        self._weight = torch.zeros(0)

    async def update_weights(self, version: int) -> int:
        async for _, tensor in self._transport.fetch(version):
            self._weight = tensor.clone()
        return version

    async def generate(self, prompt: int) -> tuple[int, float]:
        """Which process, and what it made of the prompt."""
        await asyncio.sleep(0.05)
        return os.getpid(), float(self._weight.sum()) + prompt

    async def close(self) -> None:
        await self._transport.close()


def selected(kind: Any) -> Selection[Any]:
    component = Component(
        name=kind.__name__.lower(),
        settings=Settings,
        build=lambda settings, context: kind(context),
        summary="",
    )
    return Selection(family="example", component=component, settings=Settings())


@pytest.mark.usefixtures("no_process_left")
async def test_services_share_weights_of_different_shardings(context: BuildContext) -> None:
    runtime = MONARCH.build(MonarchSettings(), context)
    ts = torchstore_api.load()
    storage = this_host().spawn_procs(per_host={"storage": 1})
    await ts.initialize(store_name="mine", mesh=storage)
    trainer = await Service.start(
        runtime, selected(Store), context, name="trainer", placement=Placement(procs=RANKS)
    )
    policy = await Service.start(
        runtime, selected(Policy), context, name="policy", placement=Placement(replicas=2)
    )
    try:
        assert await trainer.store.route() == 1
        loaded, directly = await trainer.load.route()  # what rank 0 has: the left half
        assert torch.equal(loaded, WEIGHT[:, :3])
        assert torch.equal(directly, WEIGHT[:, :3])
        assert torch.equal(await ts.get("policy_weights_v123", store_name="mine"), WEIGHT)

        assert await policy.update_weights.fanout(123) == [123, 123]
        answers = await asyncio.gather(*(policy.generate.route(n) for n in range(4)))
        assert [value for _, value in answers] == [float(WEIGHT.sum()) + n for n in range(4)]
        assert len({process for process, _ in answers}) == 2  # the load is balanced
        async with policy.session():
            first, _ = await policy.generate.route(0)
            second, _ = await policy.generate.route(1)
        assert first == second
        with pytest.raises(TypeError, match=r"policy\.generate\.route"):
            policy.generate(0)
    finally:
        await policy.close()
        await trainer.close()
        await ts.shutdown("mine")
        await storage.stop()
        await runtime.close()
