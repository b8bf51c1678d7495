"""What settings and requests can ask of the engine in this process, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from forge_core import (
    BuildContext,
    Completion,
    ConfigError,
    DataError,
    ModelSection,
    ReplicaDied,
    Sampling,
    Selection,
    Transport,
)
from forge_models.folder import load_model, load_tokenizer, materialize
from forge_testing.context import bare_context
from forge_testing.policies import policy_init
from forge_torch.plugin import MEMORY
from forge_torch.settings import MemorySettings
from forge_vllm.generator import VllmGenerator
from forge_vllm.plugin import GENERATOR
from forge_vllm.settings import VllmSettings

PROMPT = [3, 4, 5, 6]
ENGINE = {"kv_cache_memory_bytes": 32 << 20}
Start = Callable[..., VllmGenerator]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    init = policy_init(
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    return materialize(ModelSection(init=init), tmp_path_factory.mktemp("m") / "model", seed=1)


@pytest.fixture
def context(folder: Path) -> BuildContext:
    transport = Selection(family="transport", component=MEMORY, settings=MemorySettings())
    return bare_context(folder, transport=transport)


@pytest.fixture
async def start(context: BuildContext) -> AsyncIterator[Start]:
    """``start(engine={...}, ...) -> generator`` with these settings."""
    started = []

    def build(engine: dict[str, Any] | None = None, **settings: Any) -> VllmGenerator:
        generator = GENERATOR.build(
            VllmSettings(engine={**ENGINE, **(engine or {})}, **settings), context
        )
        started.append(generator)
        return generator

    yield build
    for generator in started:
        await generator.close()
    assert not [each for each in threading.enumerate() if each.name == "vllm-engine"]


@pytest.fixture
async def publisher(context: BuildContext) -> AsyncIterator[Transport]:
    assert context.transport is not None
    end = context.transport.build(context)
    yield end
    await end.close()


@pytest.mark.parametrize("mode", ["wait", "abort"])
async def test_requests_in_flight_finish_or_end_before_weights_change(
    start: Start, publisher: Transport, folder: Path, mode: Literal["wait", "abort"]
) -> None:
    generator = start(pause=mode)
    calls = [
        asyncio.create_task(generator.generate(PROMPT, Sampling(max_tokens=100, n=2)))
        for _ in range(3)
    ]
    while (await generator.stats())["tokens"] < 60:
        await asyncio.sleep(0)
    manifest = await publisher.publish(1, load_model(folder).named_parameters())
    update = asyncio.create_task(generator.update_weights(manifest))
    answers: list[list[Completion]] = await asyncio.gather(*calls)
    assert await update == manifest
    for completion in (completion for answer in answers for completion in answer):
        assert set(completion.versions) == {0}
        if mode == "wait":
            assert (completion.finish_reason, len(completion.tokens)) == ("length", 100)
        else:
            assert completion.finish_reason == "cancelled"
            assert 0 < len(completion.tokens) < 100
    (after,) = await generator.generate(PROMPT, Sampling(max_tokens=2))
    assert set(after.versions) == {1}


async def test_a_stop_string_ends_a_completion(start: Start, folder: Path) -> None:
    generator = start()
    tokenizer = load_tokenizer(folder)
    sampling = Sampling(max_tokens=400, seed=3)
    (free,) = await generator.generate(PROMPT, sampling)
    text = tokenizer.decode(free.tokens)
    wanted = text[40:43]
    end = text.index(wanted) + 3
    (stopped,) = await generator.generate(
        PROMPT, Sampling(max_tokens=400, seed=3, stop=(wanted, "no such string"))
    )
    assert tokenizer.decode(stopped.tokens) == text[:end]
    assert list(stopped.tokens) == list(free.tokens[: len(stopped.tokens)])
    assert len(stopped.logprobs) == len(stopped.tokens)
    assert stopped.finish_reason == "stop"


async def test_priority_overtakes_those_that_wait(start: Start) -> None:
    generator = start(engine={"max_num_seqs": 1})
    order: list[int] = []

    async def ask(priority: int) -> None:
        await generator.generate(PROMPT, Sampling(max_tokens=20, priority=priority))
        order.append(priority)

    calls = [asyncio.create_task(ask(priority)) for priority in (3, 2, 1)]
    await asyncio.gather(*calls)
    assert order == [1, 2, 3]


async def test_vllms_own_sampling_parameters_reach_every_request(start: Start) -> None:
    generator = start(sampling={"allowed_token_ids": [5, 9]})
    (completion,) = await generator.generate(PROMPT, Sampling(max_tokens=50, seed=0))
    assert set(completion.tokens) == {5, 9}


async def test_a_temperature_that_vllm_would_change_is_refused(start: Start) -> None:
    generator = start()
    with pytest.raises(DataError, match=r"temperature is 0\.001; it must be 0 or at least"):
        await generator.generate(PROMPT, Sampling(temperature=0.001))


async def test_a_second_engine_in_the_process_is_refused(start: Start) -> None:
    generator = start()
    with pytest.raises(ConfigError, match=r"one engine.*generator\.isolate=true"):
        start()
    assert await generator.generate(PROMPT, Sampling(max_tokens=1))


async def test_an_engine_that_fails_is_dead_for_all_calls(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.llm_engine import LLMEngine

    generator = start()
    calls = [
        asyncio.create_task(generator.generate(PROMPT, Sampling(max_tokens=400))) for _ in range(3)
    ]
    while (await generator.stats())["tokens"] < 10:
        await asyncio.sleep(0)

    def fail(engine: LLMEngine) -> None:
        raise RuntimeError("out of something")

    monkeypatch.setattr(LLMEngine, "step", fail)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, ReplicaDied)
        assert "out of something" in str(result)
    with pytest.raises(ReplicaDied):
        await generator.generate(PROMPT, Sampling(max_tokens=1))


async def test_the_process_is_left_as_it_was(start: Start) -> None:
    set_num_threads = torch.set_num_threads
    random.seed(1)
    torch.manual_seed(1)
    wanted = random.random(), torch.rand(1).item()
    random.seed(1)
    torch.manual_seed(1)
    await start().close()
    assert (random.random(), torch.rand(1).item()) == wanted
    assert torch.set_num_threads is set_num_threads
    assert gc.get_freeze_count() == 0


async def test_it_starts_beside_an_imported_flask(start: Start) -> None:
    import flask  # Monarch's dashboard brings it along

    with pytest.raises(RuntimeError, match="outside of application context"):
        vars(flask.current_app)
    assert await start().generate(PROMPT, Sampling(max_tokens=1))
