"""What only this generator promises: shared prompts, freed rows, settings, failures."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_core import (
    ConfigError,
    DataError,
    ModelSection,
    RunFailed,
    Sampling,
    Selection,
    WeightManifest,
    WeightMismatch,
)
from forge_models.folder import load_model, materialize
from forge_testing.context import bare_context
from forge_testing.policies import policy_init
from forge_torch.plugin import GENERATOR, MEMORY
from forge_torch.settings import MemorySettings, TorchGeneratorSettings
from forge_torch.transports.memory import MemoryTransport

WINDOW = 256
PROMPT = (3, 4, 5, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    init = policy_init(max_position_embeddings=WINDOW)
    return materialize(ModelSection(init=init), tmp_path_factory.mktemp("model") / "model", seed=1)


@pytest.fixture
async def make(folder: Path) -> AsyncIterator[Callable[..., Any]]:
    """Build generators with settings; closes them."""
    made = []

    def build(**settings: Any) -> Any:
        context = bare_context(
            folder,
            channel="test_generator_engine",
            transport=Selection(family="transport", component=MEMORY, settings=MemorySettings()),
        )
        made.append(GENERATOR.build(TorchGeneratorSettings(device="cpu", **settings), context))
        return made[-1]

    yield build
    for generator in made:
        await generator.close()


@pytest.fixture
async def publisher() -> AsyncIterator[MemoryTransport]:
    end = MemoryTransport(MemorySettings(), bare_context(channel="test_generator_engine"))
    yield end
    await end.close()


async def turn(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_equal_prompts_are_computed_once_in_one_prefill(make: Callable[..., Any]) -> None:
    generator = make()
    sampling = Sampling(max_tokens=8, n=5, seed=0)
    await asyncio.gather(
        generator.generate(PROMPT, sampling),
        generator.generate(PROMPT, replace(sampling, seed=1)),
        generator.generate((7, 8), sampling),
    )
    stats = await generator.stats()
    assert stats["prompt_tokens"] == len(PROMPT) + 2
    assert stats["tokens"] == 15 * 8
    assert stats["steps"] == 8
    assert stats["requests"] == 3


async def test_callers_that_come_some_turns_later_still_join_the_first_prefill(
    make: Callable[..., Any],
) -> None:
    async def late(index: int) -> None:
        await turn(index)
        await generator.generate(PROMPT, Sampling(max_tokens=6, seed=index))

    generator = make()
    await asyncio.gather(*(late(index) for index in range(8)))
    stats = await generator.stats()
    assert (stats["prompt_tokens"], stats["steps"]) == (len(PROMPT), 6)


async def test_long_prompts_are_not_padded_to_the_longest(make: Callable[..., Any]) -> None:
    generator = make()
    prompts = [tuple(3 + i % 9 for i in range(length)) for length in (250, 240, 100, 90, 5)]
    forward: Callable[..., torch.Tensor] = generator._decoder.forward
    widths = []

    def counted(tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        widths.append(tuple(tokens.shape))
        return forward(tokens, cache)

    generator._decoder.forward = counted
    await asyncio.gather(*(generator.generate(p, Sampling(max_tokens=1)) for p in prompts))
    assert widths == [(2, 250), (2, 100), (1, 5)]


async def test_a_finished_row_stops_costing_and_its_place_is_taken(
    make: Callable[..., Any],
) -> None:
    generator = make(max_batch_rows=4)
    lengths = [30, 3, 3, 3, 9, 9, 9]
    answers = await asyncio.gather(
        *(
            generator.generate(PROMPT, Sampling(max_tokens=length, seed=index))
            for index, length in enumerate(lengths)
        )
    )
    assert [len(completion.tokens) for (completion,) in answers] == lengths
    assert (await generator.stats())["steps"] == 30


async def test_cancelling_frees_rows_at_once(make: Callable[..., Any]) -> None:
    generator = make(max_batch_rows=6)
    doomed = asyncio.create_task(generator.generate(PROMPT, Sampling(max_tokens=200, n=9)))
    kept = asyncio.create_task(generator.generate((5,), Sampling(max_tokens=200, seed=1)))
    await turn(6)
    stats = await generator.stats()
    assert (stats["running"], stats["waiting"]) == (6, 4)
    doomed.cancel()
    await turn(2)
    stats = await generator.stats()
    assert (stats["running"], stats["waiting"]) == (1, 0)
    assert len((await kept)[0].tokens) == 200
    stats = await generator.stats()
    assert (stats["running"], stats["requests"]) == (0, 1)


async def test_two_runs_of_one_program_sample_alike(make: Callable[..., Any]) -> None:
    async def program() -> tuple[Any, float]:
        async def chain(index: int) -> list[Any]:
            first = await generator.generate(PROMPT, Sampling(max_tokens=4 + index, seed=index))
            longer = [*PROMPT, *first[0].tokens]
            return [first, await generator.generate(longer, Sampling(max_tokens=9, seed=index))]

        generator = make()
        return await asyncio.gather(*map(chain, range(6))), (await generator.stats())["steps"]

    # Logprobs to the last bit, since the same rows met in the same steps.
    assert await program() == await program()


async def test_an_older_version_is_refused(
    make: Callable[..., Any], publisher: MemoryTransport, folder: Path
) -> None:
    generator = make()
    weights = list(load_model(folder).named_parameters())
    first = await publisher.publish(3, weights)
    later = await publisher.publish(5, weights)
    await generator.update_weights(later)
    with pytest.raises(WeightMismatch, match="version 3 is older than version 5"):
        await generator.update_weights(first)
    (completion,) = await generator.generate(PROMPT, Sampling(max_tokens=2))
    assert list(completion.versions) == [5, 5]


async def test_of_tied_weights_either_name_or_both_will_do(
    make: Callable[..., Any], publisher: MemoryTransport, folder: Path
) -> None:
    generator = make()
    weights = load_model(folder).state_dict()
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(weights)
    for version, left_out in enumerate(["", "lm_head.weight", "model.embed_tokens.weight"]):
        named = [(name, tensor) for name, tensor in weights.items() if name != left_out]
        manifest = await publisher.publish(version + 1, named)
        assert await generator.update_weights(manifest) == manifest


async def test_requests_in_flight_fail_with_an_update_that_fails(
    make: Callable[..., Any], publisher: MemoryTransport, folder: Path
) -> None:
    generator = make()
    pending = asyncio.create_task(generator.generate(PROMPT, Sampling(max_tokens=200)))
    await turn(5)
    half = [
        (name, tensor.to(torch.bfloat16)) for name, tensor in load_model(folder).named_parameters()
    ]
    manifest = await publisher.publish(1, half)
    with pytest.raises(WeightMismatch, match=r"came as bfloat16 \[.*has float32 \["):
        await generator.update_weights(manifest)
    with pytest.raises(WeightMismatch, match="update to version 1 failed"):
        await pending
    with pytest.raises(WeightMismatch, match="update to version 1 failed"):
        await generator.generate(PROMPT, Sampling(max_tokens=1))


async def test_weights_that_are_not_finite_end_in_one_line_and_can_be_mended(
    make: Callable[..., Any], publisher: MemoryTransport, folder: Path
) -> None:
    generator = make()
    good = load_model(folder)
    bad = copy.deepcopy(good)
    with torch.no_grad():
        bad.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    await generator.update_weights(await publisher.publish(1, bad.named_parameters()))
    with pytest.raises(RunFailed, match=r"logits are not finite \(weights of version 1\)"):
        await generator.generate(PROMPT, Sampling(max_tokens=4))
    await generator.update_weights(await publisher.publish(2, good.named_parameters()))
    (completion,) = await generator.generate(PROMPT, Sampling(max_tokens=4))
    assert len(completion.tokens) == 4


async def test_a_closed_generator_says_so(make: Callable[..., Any]) -> None:
    generator = make()
    await generator.close()
    with pytest.raises(RunFailed, match="the generator was closed"):
        await generator.generate(PROMPT, Sampling())


async def test_the_window_can_be_made_smaller_but_not_larger(make: Callable[..., Any]) -> None:
    generator = make(max_model_len=8)
    (completion,) = await generator.generate(PROMPT, Sampling(max_tokens=50))
    assert (len(completion.tokens), completion.finish_reason) == (4, "length")
    with pytest.raises(ConfigError, match=f"300 is more than the {WINDOW} positions"):
        make(max_model_len=300)


async def test_what_cannot_be_had_is_an_error(folder: Path) -> None:
    context = bare_context(folder)
    settings = TorchGeneratorSettings(device="cpu")
    with pytest.raises(ConfigError, match="runs in one process, not in 2"):
        GENERATOR.build(settings, replace(context, world_size=2))
    generator = GENERATOR.build(settings, context)
    with pytest.raises(ConfigError, match="transport"):
        await generator.update_weights(WeightManifest(1, "", 0, 0))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch finds no CUDA device"):
            GENERATOR.build(TorchGeneratorSettings(device="cuda"), context)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(n=0),
        Sampling(max_tokens=0),
        Sampling(temperature=-1.0),
        Sampling(top_p=0.0),
        Sampling(top_k=-1),
    ],
)
async def test_sampling_out_of_range_is_refused(
    make: Callable[..., Any], sampling: Sampling
) -> None:
    with pytest.raises(DataError, match=r"sampling\.\w+ is .*; it must be"):
        await make().generate(PROMPT, sampling)
