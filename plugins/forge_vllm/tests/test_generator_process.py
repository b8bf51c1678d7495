"""The engine in a process of its own: what differs from the engine in this one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from forge_core import FanoutError, ModelSection, Sampling, Selection, ServiceOptions, Transport
from forge_local.runtime import LocalRuntime
from forge_models.folder import load_model, materialize
from forge_services.service import Service
from forge_services.weight_update import update_weights
from forge_testing.context import bare_context
from forge_testing.policies import Versions, policy_init
from forge_torch.plugin import SHM
from forge_torch.settings import ShmSettings
from forge_vllm.plugin import GENERATOR
from forge_vllm.settings import VllmSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [3, 4, 5, 6]


@dataclass
class Policy:
    """A service of one engine, and the trainer's end of its transport."""

    service: Service
    versions: Versions
    events: list[tuple[float, str]]
    """When they came (monotonic), and what they say."""

    async def update(self) -> None:
        """Have the engine load the next version."""
        await update_weights(self.service, await self.versions.publish_next())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Policy]:
    init = policy_init("llama", head_dim=32, max_position_embeddings=512)
    folder = materialize(ModelSection(init=init), tmp_path_factory.mktemp("m") / "model", seed=1)
    transport: Selection[Transport] = Selection(
        family="transport", component=SHM, settings=ShmSettings()
    )
    context = bare_context(folder, transport=transport)
    settings = VllmSettings(engine={"kv_cache_memory_bytes": 32 << 20}, engine_process=True)
    selection = Selection(family="generator", component=GENERATOR, settings=settings)
    publisher = transport.build(context)
    events: list[tuple[float, str]] = []
    service = await Service.start(
        LocalRuntime(),
        selection,
        context,
        name="generator",
        options=ServiceOptions(outage_limit=300),
        on_event=lambda kind, message, data: events.append((time.monotonic(), message)),
    )
    yield Policy(service, Versions(publisher, load_model(folder)), events)
    await service.close()
    await publisher.close()
    assert not engines()


async def test_weights_travel_to_the_engine_and_tokens_say_which_sampled_them(
    policy: Policy,
) -> None:
    sampling = Sampling(max_tokens=300, n=4)
    pending = [
        asyncio.create_task(policy.service.generate.route(PROMPT, sampling)) for _ in range(4)
    ]
    for _ in range(3):
        await asyncio.sleep(0.1)
        await policy.update()
    for completions in await asyncio.gather(*pending):
        for completion in completions:
            policy.versions.check(PROMPT, completion, sampling)


async def test_weights_that_do_not_fit_are_refused_in_one_line(policy: Policy) -> None:
    manifest = await policy.versions.publish_next("model.layers.1.mlp.down_proj.weight")
    with pytest.raises(FanoutError, match=r"never came: model\.layers\.1\.mlp\.down_proj\.weight"):
        await update_weights(policy.service, manifest)
    await policy.update()


async def test_a_cancelled_call_leaves_the_engine(policy: Policy) -> None:
    call = asyncio.create_task(policy.service.generate.route(PROMPT, Sampling(max_tokens=500, n=3)))
    while (await policy.service.stats.fanout())[0]["running"] < 3:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await policy.service.stats.fanout())[0]["running"] == 0


async def test_a_killed_engine_is_noticed_and_comes_back_with_the_current_weights(
    policy: Policy,
) -> None:
    (engine,) = engines()
    pending = [
        asyncio.create_task(policy.service.generate.route(PROMPT, Sampling(max_tokens=400)))
        for _ in range(4)
    ]
    while (await policy.service.stats.fanout())[0]["running"] < 4:
        await asyncio.sleep(0.01)
    gaps: list[float] = []
    ticking = asyncio.create_task(tick(gaps))
    killed = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    answers = await asyncio.gather(*pending)
    back = time.monotonic()
    ticking.cancel()
    assert max(gaps) < (back - killed) / 2  # other replicas would have gone on
    told, message = policy.events[0]
    assert "replica 0 died: vLLM's engine process died" in message
    assert told - killed < 10
    for (completion,) in answers:
        assert len(completion.tokens) == 400
        assert set(completion.versions) == {policy.versions.last}
    assert engines() != [engine]


async def tick(gaps: list[float]) -> None:
    """Note how long the event loop makes a sleep of 10 ms."""
    while True:
        begun = time.monotonic()
        await asyncio.sleep(0.01)
        gaps.append(time.monotonic() - begun)


def engines() -> list[int]:
    """Processes that vLLM has started here."""
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]
