"""Weights that change under way, on one engine: what it reports is what Hugging Face computes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from forge_core import Completion, Generator, ModelSection, Sampling, Selection, Transport
from forge_models.folder import load_model, materialize
from forge_testing.context import bare_context
from forge_testing.policies import Versions, policy_init
from forge_torch.plugin import MEMORY
from forge_torch.settings import MemorySettings
from forge_vllm.plugin import GENERATOR
from forge_vllm.settings import VllmSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLINGS = [Sampling(max_tokens=24, n=2), Sampling(max_tokens=24, n=2, temperature=0.7, top_p=0.9)]
PROMPTS = [[5], [3, 4, 5, 6, 7, 8, 9, 10, 11], [7, 7, 12]]


@dataclass
class Policy:
    """The engine under test, and the trainer's end of its transport."""

    generator: Generator
    versions: Versions


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Policy]:
    init = policy_init(head_dim=32, max_position_embeddings=96, tie_word_embeddings=False)
    folder = materialize(ModelSection(init=init), tmp_path_factory.mktemp("m") / "model", seed=1)
    transport: Selection[Transport] = Selection(
        family="transport", component=MEMORY, settings=MemorySettings()
    )
    context = bare_context(folder, transport=transport)
    publisher = transport.build(context)
    settings = VllmSettings(engine={"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 64})
    generator = GENERATOR.build(settings, context)
    yield Policy(generator, Versions(publisher, load_model(folder)))
    await generator.close()
    await publisher.close()


async def test_logprobs_are_those_of_hugging_face_before_and_after_five_updates(
    policy: Policy,
) -> None:
    for _ in range(6):
        for sampling in SAMPLINGS:
            answers = await asyncio.gather(
                *(policy.generator.generate(prompt, sampling) for prompt in PROMPTS)
            )
            for prompt, completions in zip(PROMPTS, answers, strict=True):
                for completion in completions:
                    assert set(completion.versions) == {policy.versions.last}
                    policy.versions.check(prompt, completion, sampling)
        manifest = await policy.versions.publish_next()
        assert await policy.generator.update_weights(manifest) == manifest


async def test_requests_in_flight_while_weights_change_ten_times(policy: Policy) -> None:
    """None is lost or answered twice, and each token is of the weights that its version names."""
    first = policy.versions.last
    sampling = Sampling(max_tokens=60, temperature=0.9)
    prompts = [[3 + index % 17, 3 + index // 17, 4] for index in range(200)]
    answered = []

    async def ask(index: int) -> Completion:
        (completion,) = await policy.generator.generate(prompts[index], sampling)
        answered.append(index)
        return completion

    async def tokens() -> float:
        return (await policy.generator.stats())["tokens"]

    start = await tokens()
    tasks = [asyncio.create_task(ask(index)) for index in range(200)]
    for swap in range(10):
        while await tokens() < start + 1000 * (swap + 1):
            await asyncio.sleep(0.005)
        await policy.generator.update_weights(await policy.versions.publish_next())
    completions = await asyncio.wait_for(asyncio.gather(*tasks), 120)

    assert sorted(answered) == list(range(200))
    seen = set()
    for prompt, completion in zip(prompts, completions, strict=True):
        assert len(completion.tokens) == 60
        seen |= set(completion.versions)
        policy.versions.check(prompt, completion, sampling)
    assert seen == set(range(first, first + 11))
    assert sum(len(set(completion.versions)) > 1 for completion in completions) > 100
