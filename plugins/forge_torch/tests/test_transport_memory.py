"""Transport ``memory``."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from forge_core import Selection, Transport
from forge_tensors.checksum import checksum
from forge_testing.conformance.transport import TransportConformance
from forge_testing.context import bare_context
from forge_torch.plugin import MEMORY
from forge_torch.settings import MemorySettings
from forge_torch.transports import memory
from forge_torch.transports.memory import SPARE_COPIES, MemoryTransport


class TestMemory(TransportConformance):
    @pytest.fixture
    def selection(self) -> Selection[Transport]:
        return Selection(family="transport", component=MEMORY, settings=MemorySettings())


def end_of(channel: str, **settings: Any) -> MemoryTransport:
    return MemoryTransport(MemorySettings(**settings), bare_context(channel=channel))


async def addresses(end: Transport, version: int) -> set[int]:
    return {tensor.data_ptr() async for _, tensor in end.fetch(version)}


async def test_fetch_copies_nothing_and_buffers_are_used_again() -> None:
    end = end_of("buffers")
    weights = [("w", torch.ones(1000)), ("v", torch.ones(10))]
    seen = []
    for version in range(6):
        await end.publish(version, weights)
        assert await addresses(end, version) == await addresses(end, version)
        seen.append(await addresses(end, version))
        await end.drop(version - 1)
    assert seen[0] == seen[2] == seen[4]
    assert seen[1] == seen[3] == seen[5]
    await end.close()


async def test_kept_buffers_are_bounded() -> None:
    end = end_of("bounded")
    for version in range(8):
        await end.publish(version, [("w", torch.ones(10))])
    for version in range(8):
        await end.drop(version)
    assert len(memory._channels["bounded"].spare) == SPARE_COPIES
    await end.close()


async def test_closing_the_last_end_frees_the_memory() -> None:
    first, second = end_of("freed"), end_of("freed")
    await first.publish(0, [("w", torch.ones(10))])
    async for _, tensor in second.fetch(0):
        held = weakref.ref(tensor)
    del tensor
    await first.close()
    assert "freed" in memory._channels
    await second.close()
    gc.collect()
    assert "freed" not in memory._channels
    assert held() is None


async def test_a_closed_end_says_so() -> None:
    end = end_of("closed")
    await end.close()
    with pytest.raises(RuntimeError, match="closed"):
        await end.versions()


async def test_a_name_that_comes_twice_is_refused() -> None:
    end = end_of("twice")
    with pytest.raises(ValueError, match="'w' is published twice"):
        await end.publish(0, [("w", torch.ones(1)), ("w", torch.ones(1))])
    await end.close()


async def test_weights_can_travel_in_another_type() -> None:
    end = end_of("narrow", dtype="bfloat16")
    weights = {"w": torch.randn(5, 3), "n": torch.arange(4)}
    manifest = await end.publish(0, weights.items())
    fetched = {name: tensor.clone() async for name, tensor in end.fetch(0)}
    assert torch.equal(fetched["w"], weights["w"].bfloat16())
    assert torch.equal(fetched["n"], weights["n"])
    assert manifest.bytes == 5 * 3 * 2 + 4 * 8
    assert manifest.checksum == checksum(fetched.items())
    await end.close()
