"""Weights that change under way, on one engine: what it reports is what Hugging Face computes."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import torch

from forge_core import BuildContext, Completion, Sampling, Selection, WeightManifest
from forge_core.config.sections import (
    DistributedSection,
    ModelInit,
    ModelSection,
    TrainingSection,
)
from forge_core.models.folder import load_model, materialize
from forge_core.protocols import Generator, Transport
from forge_core.testing.conformance.generator import distribution
from forge_torch.transports.components import MEMORY, MemorySettings
from forge_vllm.settings import GENERATOR, VllmSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 96
TOLERANCE = 1e-3
SAMPLINGS = [Sampling(max_tokens=24, n=2), Sampling(max_tokens=24, n=2, temperature=0.7, top_p=0.9)]
PROMPTS = [[5], [3, 4, 5, 6, 7, 8, 9, 10, 11], [7, 7, 12]]

MODEL = ModelInit(
    architecture="qwen3",
    characters="0123456789+-*/=() abcdefgh",
    config={
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": WINDOW,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    },
)


@dataclass
class Policy:
    """The engine under test, the trainer's end of its transport, and the weights by version."""

    generator: Generator
    publisher: Transport
    models: list[PreTrainedModel]

    async def publish_next(self) -> WeightManifest:
        """Change the weights and publish them."""
        model = copy.deepcopy(self.models[-1])
        noise = torch.Generator().manual_seed(len(self.models))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
        self.models.append(model)
        return await self.publisher.publish(len(self.models) - 1, model.named_parameters())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Policy]:
    folder: Path = tmp_path_factory.mktemp("model") / "model"
    materialize(ModelSection(init=MODEL), folder, seed=1)
    transport: Selection[Transport] = Selection(
        family="transport", component=MEMORY, settings=MemorySettings()
    )
    context = BuildContext(
        model=ModelSection(path=folder),
        training=TrainingSection(),
        distributed=DistributedSection(),
        channel=f"updates/{uuid.uuid4().hex}",
        transport=transport,
    )
    publisher = transport.build(context)
    settings = VllmSettings(engine={"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 64})
    generator = GENERATOR.build(settings, context)
    yield Policy(generator, publisher, [load_model(folder)])
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
                    assert set(completion.versions) == {len(policy.models) - 1}
                    check(policy.models, prompt, completion, sampling)
        manifest = await policy.publish_next()
        assert await policy.generator.update_weights(manifest) == manifest


async def test_requests_in_flight_while_weights_change_ten_times(policy: Policy) -> None:
    """None is lost or answered twice, and each token is of the weights that its version names."""
    first = len(policy.models) - 1
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
        await policy.generator.update_weights(await policy.publish_next())
    completions = await asyncio.wait_for(asyncio.gather(*tasks), 120)

    assert sorted(answered) == list(range(200))
    seen = set()
    for prompt, completion in zip(prompts, completions, strict=True):
        assert len(completion.tokens) == 60
        assert list(completion.versions) == sorted(completion.versions)
        seen |= set(completion.versions)
        check(policy.models, prompt, completion, sampling)
    assert seen == set(range(first, first + 11))
    assert sum(len(set(completion.versions)) > 1 for completion in completions) > 100


def check(
    models: Sequence[PreTrainedModel],
    prompt: Sequence[int],
    completion: Completion,
    sampling: Sampling,
) -> None:
    """Compare each logprob with a forward pass of the model that its version names.

    The past of a token is computed anew when weights change, so it is that model's own.
    """
    whole = torch.tensor([[*prompt, *completion.tokens]])
    with torch.no_grad():
        logits = {
            version: models[version](input_ids=whole).logits[0, len(prompt) - 1 : -1]
            for version in set(completion.versions)
        }
    for place, (token, logprob, version) in enumerate(
        zip(completion.tokens, completion.logprobs, completion.versions, strict=True)
    ):
        expected = distribution(logits[version][place], sampling)[token]
        assert logprob == pytest.approx(expected, abs=TOLERANCE), (place, version)
