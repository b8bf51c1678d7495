"""The engine in a process of its own: what differs from the engine in this one."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import torch

from forge_core import BuildContext, Sampling, Selection
from forge_core.config.sections import (
    DistributedSection,
    ModelInit,
    ModelSection,
    TrainingSection,
)
from forge_core.errors import FanoutError
from forge_core.models.folder import load_model, materialize
from forge_core.protocols import Transport
from forge_core.runtimes.local import LocalRuntime
from forge_core.services.options import ServiceOptions
from forge_core.services.service import Service
from forge_core.services.weights import update_weights
from forge_core.testing.conformance.generator import distribution
from forge_torch.transports.components import SHM, ShmSettings
from forge_vllm.settings import GENERATOR, VllmSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = ModelInit(
    architecture="llama",
    characters="0123456789+-*/=() abcdefgh",
    config={
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    },
)
PROMPT = [3, 4, 5, 6]


@dataclass
class Policy:
    """A service of one engine, and the trainer's end of its transport."""

    service: Service
    publisher: Transport
    models: list[PreTrainedModel]
    events: list[tuple[float, str]] = field(default_factory=list)
    """When they came (monotonic), and what they say."""

    async def update(self) -> None:
        """Change the weights, publish them and have the engine load them."""
        model = copy.deepcopy(self.models[-1])
        noise = torch.Generator().manual_seed(len(self.models))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
        version = len(self.models)
        manifest = await self.publisher.publish(version, model.named_parameters())
        await update_weights(self.service, manifest)
        self.models.append(model)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Policy]:
    folder: Path = tmp_path_factory.mktemp("model") / "model"
    materialize(ModelSection(init=MODEL), folder, seed=1)
    transport: Selection[Transport] = Selection(
        family="transport", component=SHM, settings=ShmSettings()
    )
    context = BuildContext(
        model=ModelSection(path=folder),
        training=TrainingSection(),
        distributed=DistributedSection(),
        channel=f"process/{uuid.uuid4().hex}",
        transport=transport,
    )
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
    yield Policy(service, publisher, [load_model(folder)], events)
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
            assert list(completion.versions) == sorted(completion.versions)
            whole = torch.tensor([[*PROMPT, *completion.tokens]])
            for version in set(completion.versions):
                with torch.no_grad():
                    logits = policy.models[version](input_ids=whole).logits[0, len(PROMPT) - 1 :]
                for place, token in enumerate(completion.tokens):
                    if completion.versions[place] == version:
                        expected = distribution(logits[place], sampling)[token]
                        assert completion.logprobs[place] == pytest.approx(expected, abs=1e-3)


async def test_weights_that_do_not_fit_are_refused_in_one_line(policy: Policy) -> None:
    weights = dict(policy.models[-1].named_parameters())
    weights.pop("model.layers.1.mlp.down_proj.weight")
    version = len(policy.models)
    manifest = await policy.publisher.publish(version, weights.items())
    with pytest.raises(FanoutError, match=r"never came: model\.layers\.1\.mlp\.down_proj\.weight"):
        await update_weights(policy.service, manifest)
    policy.models.append(policy.models[-1])
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
    killed = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    answers = await asyncio.gather(*pending)
    told, message = policy.events[0]
    assert "replica 0 died: vLLM's engine process died" in message
    assert told - killed < 5
    for (completion,) in answers:
        assert len(completion.tokens) == 400
        assert set(completion.versions) == {len(policy.models) - 1}
    assert engines() != [engine]


def engines() -> list[int]:
    """Processes that vLLM has started here."""
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]
