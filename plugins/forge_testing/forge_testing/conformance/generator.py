"""What every generator must do. Inherit it, and say which generator and which transport.

.. code-block:: python

    class TestMine(GeneratorConformance):
        @pytest.fixture
        def selection(self):
            return Selection(family="generator", component=MINE, settings=MineSettings())

        @pytest.fixture
        def transport(self):
            return Selection(family="transport", component=MEMORY, settings=MemorySettings())

What a generator says of its tokens is compared with plain forward passes of the same model, one
sequence at a time, through transformers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from forge_core import (
    BuildContext,
    Completion,
    DataError,
    ForgeError,
    Generator,
    ModelInit,
    ModelSection,
    NoRoom,
    Sampling,
    Selection,
    StreamingGenerator,
    Transport,
    WeightManifest,
)
from forge_models.folder import load_model, load_tokenizer, materialize
from forge_testing.conformance.suite import Suite, built
from forge_testing.context import bare_context
from forge_testing.policies import distribution, forward, policy_init, with_noise

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WINDOW = 96
"""Positions of the model that the suite makes."""

PATIENCE = 60.0
"""Seconds that anything may take."""

SAMPLINGS = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.7),
    "nucleus": Sampling(temperature=0.7, top_p=0.9),
    "top_k": Sampling(top_k=5),
    "top_k_and_nucleus": Sampling(temperature=1.3, top_k=8, top_p=0.8),
    "greedy": Sampling(temperature=0.0),
}

PROMPTS: tuple[tuple[int, ...], ...] = ((5,), (3, 4, 5, 6, 7, 8, 9, 10, 11), (7, 7, 12))
"""Of unequal length."""


class GeneratorConformance(Suite):
    """Inherit with the fixtures ``selection`` and ``transport``."""

    time_limit: ClassVar[float] = 900.0  # engines take minutes to start

    model_init: ClassVar[ModelInit] = policy_init(max_position_embeddings=WINDOW)
    """The model to sample from; its window must be ``WINDOW``, its vocabulary at least 20."""

    dtype: ClassVar[Any] = "float32"
    """Of the weights."""

    logprob_tolerance: ClassVar[float] = 1e-4
    """Largest difference of a logprob from that of a forward pass."""

    keeps_cache_in_flight: ClassVar[bool] = True
    """Whether a request in flight keeps its keys and values when weights change. False: they are
    recomputed."""

    @pytest.fixture
    def selection(self) -> Selection[Generator]:
        """The generator under test, with its settings."""
        raise NotImplementedError("override the selection fixture")

    @pytest.fixture
    def transport(self) -> Selection[Transport]:
        """A transport that works between this process and wherever the generator lives."""
        raise NotImplementedError("override the transport fixture")

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The model in Hugging Face layout."""
        section = ModelSection(init=cls.model_init, dtype=cls.dtype)
        return materialize(section, tmp_path_factory.mktemp("model") / "model", seed=1)

    @pytest.fixture
    def model(self, folder: Path) -> PreTrainedModel:
        """What the generator starts with: version 0."""
        return load_model(folder, self.dtype)

    @pytest.fixture
    def changed(self, model: PreTrainedModel) -> PreTrainedModel:
        """The same model with other weights."""
        return with_noise(model, seed=7)

    @pytest.fixture
    def context(self, folder: Path, transport: Selection[Transport]) -> BuildContext:
        """A build context with a channel of its own."""
        section = ModelSection(path=folder, dtype=self.dtype)
        return bare_context(model=section, transport=transport)

    @pytest.fixture
    async def publisher(
        self, transport: Selection[Transport], context: BuildContext
    ) -> AsyncIterator[Transport]:
        """The trainer's end of the transport."""
        end = transport.build(context)
        yield end
        await end.close()

    @pytest.fixture
    async def generator(
        self, selection: Selection[Generator], context: BuildContext, publisher: Transport
    ) -> AsyncIterator[Generator]:
        """The generator, at version 0."""
        generator = built(selection, context)
        yield generator
        await generator.close()

    # Tokens and logprobs

    @pytest.mark.parametrize("kind", SAMPLINGS)
    async def test_logprobs_are_those_of_a_forward_pass(
        self, generator: Generator, model: PreTrainedModel, kind: str
    ) -> None:
        sampling = replace(SAMPLINGS[kind], max_tokens=20, n=2, seed=11)
        answers = await gather(generator.generate(prompt, sampling) for prompt in PROMPTS)
        for prompt, completions in zip(PROMPTS, answers, strict=True):
            for completion in completions:
                assert len(completion.tokens) == 20
                self.check(completion, model, prompt, sampling)

    async def test_requests_with_unlike_sampling_meet_in_one_batch(
        self, generator: Generator, model: PreTrainedModel
    ) -> None:
        samplings = [replace(kind, max_tokens=12, n=2, seed=3) for kind in SAMPLINGS.values()]
        answers = await gather(generator.generate(PROMPTS[1], each) for each in samplings)
        for sampling, completions in zip(samplings, answers, strict=True):
            for completion in completions:
                self.check(completion, model, PROMPTS[1], sampling)

    async def test_greedy_takes_the_most_probable_token(
        self, generator: Generator, model: PreTrainedModel
    ) -> None:
        sampling = Sampling(temperature=0.0, max_tokens=20)
        (completion,) = await generator.generate(PROMPTS[1], sampling)
        logits = forward(model, (*PROMPTS[1], *completion.tokens))[len(PROMPTS[1]) - 1 : -1]
        for token, row in zip(completion.tokens, logits, strict=True):
            assert float(row[token]) >= float(row.max()) - self.logprob_tolerance

    async def test_all_tokens_come_about_as_often_as_they_should(
        self, generator: Generator, model: PreTrainedModel
    ) -> None:
        """Chi-square of 2,000 first tokens; of 10,000 seeds, one would fail a right generator."""
        sampling = Sampling(max_tokens=1, n=2000, seed=5)
        completions = await generator.generate(PROMPTS[1], sampling)
        counts = torch.zeros(model.config.vocab_size)
        for completion in completions:
            counts[completion.tokens[0]] += 1
        expected = 2000 * forward(model, PROMPTS[1])[-1].softmax(-1)
        common = expected >= 5
        observed = torch.cat((counts[common], counts[~common].sum().view(1)))
        wanted = torch.cat((expected[common], expected[~common].sum().view(1)))
        statistic = float(((observed - wanted) ** 2 / wanted).sum())
        freedom = len(wanted) - 1
        # Wilson and Hilferty (1931): the cube root of chi-square over freedom is nearly normal.
        spread = 2 / (9 * freedom)
        assert (statistic / freedom) ** (1 / 3) < 1 - spread + 3.72 * spread**0.5

    # Samples, seeds, ends

    async def test_n_samples_are_that_many_and_differ(self, generator: Generator) -> None:
        completions = await generator.generate(PROMPTS[0], Sampling(max_tokens=12, n=8, seed=0))
        assert len(completions) == 8
        assert len({tuple(completion.tokens) for completion in completions}) == 8

    async def test_a_seed_repeats_its_samples(self, generator: Generator) -> None:
        sampling = Sampling(max_tokens=12, n=3, seed=9)
        first = await generator.generate(PROMPTS[1], sampling)
        again = await generator.generate(PROMPTS[1], sampling)
        other = await generator.generate(PROMPTS[1], replace(sampling, seed=10))
        fewer = await generator.generate(PROMPTS[1], replace(sampling, n=1))
        assert tokens(first) == tokens(again)
        assert tokens(first) != tokens(other)
        assert tokens(fewer) == tokens(first)[:1]

    async def test_companions_do_not_change_what_is_sampled(self, generator: Generator) -> None:
        sampling = Sampling(max_tokens=16, n=2, seed=21)
        alone = await generator.generate(PROMPTS[2], sampling)
        others = [
            generator.generate(
                PROMPTS[index % 3],
                Sampling(max_tokens=1 + index, temperature=index % 4 / 2, seed=index, top_k=index),
            )
            for index in range(20)
        ]
        among, *_ = await gather([generator.generate(PROMPTS[2], sampling), *others])
        assert tokens(among) == tokens(alone)

    async def test_a_stop_string_ends_a_completion_and_is_kept(
        self, generator: Generator, folder: Path
    ) -> None:
        """The completion ends with the token that completes the string; what comes before is what
        would have been sampled without it, with the same logprobs."""
        tokenizer = load_tokenizer(folder)

        def text_of(tokens: Any) -> str:
            text = tokenizer.decode(list(tokens), skip_special_tokens=True)
            assert isinstance(text, str)
            return text

        sampling = Sampling(max_tokens=24, seed=11, n=2)
        free = await generator.generate(PROMPTS[1], sampling)
        wanted = text_of(free[0].tokens)[4:6]
        stops = (wanted, "no such string")
        stopped = await generator.generate(PROMPTS[1], replace(sampling, stop=stops))
        for whole, part in zip(free, stopped, strict=True):
            texts = [text_of(whole.tokens[:end]) for end in range(1, len(whole.tokens) + 1)]
            place = next((end for end, text in enumerate(texts) if wanted in text), None)
            length = len(whole.tokens) if place is None else place + 1
            assert list(part.tokens) == list(whole.tokens[:length])
            expected = pytest.approx(list(whole.logprobs[:length]), abs=self.logprob_tolerance)
            assert list(part.logprobs) == expected
            assert part.finish_reason == ("length" if place is None else "stop")
        assert stopped[0].finish_reason == "stop"

    async def test_a_stop_token_ends_a_completion_and_is_kept(self, generator: Generator) -> None:
        stops = (4, 5, 6, 7)
        sampling = Sampling(max_tokens=60, n=16, seed=2)
        free = await generator.generate(PROMPTS[1], sampling)
        stopped = await generator.generate(PROMPTS[1], replace(sampling, stop_token_ids=stops))
        for whole, part in zip(free, stopped, strict=True):
            assert whole.finish_reason == "length"
            place = next((i for i, token in enumerate(whole.tokens) if token in stops), None)
            expected = whole.tokens if place is None else whole.tokens[: place + 1]
            assert list(part.tokens) == list(expected)
            assert part.finish_reason == ("length" if place is None else "stop")
        assert any(completion.finish_reason == "stop" for completion in stopped)

    async def test_a_completion_ends_at_the_window(
        self, generator: Generator, model: PreTrainedModel
    ) -> None:
        prompt = [3 + index % 17 for index in range(WINDOW - 5)]
        sampling = Sampling(max_tokens=50, seed=0)
        (completion,) = await generator.generate(prompt, sampling)
        assert completion.finish_reason == "length"
        assert len(completion.tokens) == 5
        self.check(completion, model, prompt, sampling)

    async def test_a_stream_is_the_completion_in_parts(self, generator: Generator) -> None:
        if not isinstance(generator, StreamingGenerator):
            pytest.skip("this generator does not stream")
        sampling = Sampling(max_tokens=30, seed=2, temperature=0.8, stop_token_ids=(4, 5))
        whole = await generator.generate(PROMPTS[1], sampling)
        parts = [part async for part in generator.stream(PROMPTS[1], sampling)]
        assert [token for part in parts for token in part.tokens] == list(whole[0].tokens)
        logprobs = [value for part in parts for value in part.logprobs]
        assert logprobs == pytest.approx(list(whole[0].logprobs), abs=self.logprob_tolerance)
        assert [value for part in parts for value in part.versions] == [0] * len(logprobs)
        assert all(part.tokens and part.finish_reason is None for part in parts[:-1])
        assert parts[-1].finish_reason == whole[0].finish_reason
        with pytest.raises(DataError):
            await anext(aiter(generator.stream(PROMPTS[1], Sampling(n=2))))

    async def test_a_stream_that_is_closed_leaves_the_others_as_they_were(
        self, generator: Generator
    ) -> None:
        if not isinstance(generator, StreamingGenerator):
            pytest.skip("this generator does not stream")
        sampling = Sampling(max_tokens=40, n=2, seed=8)
        alone = await generator.generate(PROMPTS[2], sampling)
        kept = asyncio.create_task(generator.generate(PROMPTS[2], sampling))
        async with contextlib.aclosing(
            generator.stream(PROMPTS[1], Sampling(max_tokens=80, seed=1))
        ) as stream:
            assert (await anext(stream)).tokens
        (among,) = await gather([kept])
        assert tokens(among) == tokens(alone)
        assert tokens(await generator.generate(PROMPTS[2], sampling)) == tokens(alone)

    # Weights

    async def test_after_a_swap_the_new_weights_sample(
        self,
        generator: Generator,
        publisher: Transport,
        model: PreTrainedModel,
        changed: PreTrainedModel,
    ) -> None:
        sampling = Sampling(max_tokens=12, n=2, seed=1, temperature=0.7, top_p=0.9)
        (before, *_) = await generator.generate(PROMPTS[1], sampling)
        self.check(before, model, PROMPTS[1], sampling)
        assert set(before.versions) == {0}

        manifest = await publish(publisher, 1, changed)
        assert await generator.update_weights(manifest) == manifest
        for completion in await generator.generate(PROMPTS[1], sampling):
            self.check(completion, changed, PROMPTS[1], sampling)
            assert set(completion.versions) == {1}

        # And back, so that nothing of the old weights was lost or left behind.
        manifest = await publish(publisher, 2, model)
        assert await generator.update_weights(manifest) == manifest
        (after, *_) = await generator.generate(PROMPTS[1], sampling)
        assert list(after.tokens) == list(before.tokens)

    async def test_versions_are_true_when_weights_change_in_flight(
        self,
        generator: Generator,
        publisher: Transport,
        model: PreTrainedModel,
        changed: PreTrainedModel,
    ) -> None:
        sampling = Sampling(max_tokens=60, n=2, seed=4, temperature=0.9)
        manifest = await publish(publisher, 1, changed)
        pending = [asyncio.create_task(generator.generate(prompt, sampling)) for prompt in PROMPTS]
        while (await generator.stats())["tokens"] < 30:
            await asyncio.sleep(0)
        await generator.update_weights(manifest)
        crossed = 0
        for prompt, completions in zip(PROMPTS, await gather(pending), strict=True):
            for completion in completions:
                assert list(completion.versions) == sorted(completion.versions)
                assert set(completion.versions) <= {0, 1}
                crossed += len(set(completion.versions)) == 2
                self.check_in_flight(completion, (model, changed), prompt, sampling)
        assert crossed, "no completion was in flight during the update"

    @pytest.mark.parametrize("fault", ["missing", "unknown", "shape"])
    async def test_weights_that_do_not_fit_are_refused_by_name(
        self, generator: Generator, publisher: Transport, changed: PreTrainedModel, fault: str
    ) -> None:
        weights = dict(changed.named_parameters())
        name = next(name for name in weights if "down_proj" in name)
        if fault == "missing":
            del weights[name]
        elif fault == "shape":
            weights[name] = weights[name][:-1]
        else:
            name = "model.layers.0.mystery.weight"
            weights[name] = torch.nn.Parameter(torch.zeros(3))
        manifest = await publisher.publish(1, weights.items())
        with pytest.raises(ForgeError) as caught:
            await generator.update_weights(manifest)
        assert name in str(caught.value)
        with pytest.raises(ForgeError):
            await generator.generate(PROMPTS[0], Sampling(max_tokens=2))

        manifest = await publish(publisher, 2, changed)
        assert await generator.update_weights(manifest) == manifest
        sampling = Sampling(max_tokens=4, seed=0)
        (completion,) = await generator.generate(PROMPTS[0], sampling)
        self.check(completion, changed, PROMPTS[0], sampling)

    # Many requests, and requests that go away

    async def test_a_hundred_requests_are_all_answered_each_its_own(
        self, generator: Generator, model: PreTrainedModel
    ) -> None:
        prompts = [
            [3 + (index * step) % 17 for step in range(1 + index % 9)] for index in range(100)
        ]
        samplings = [Sampling(max_tokens=1 + index % 7, seed=index) for index in range(100)]
        answers = await gather(map(generator.generate, prompts, samplings))
        for prompt, sampling, completions in zip(prompts, samplings, answers, strict=True):
            (completion,) = completions
            assert len(completion.tokens) == sampling.max_tokens
            self.check(completion, model, prompt, sampling)

    async def test_requests_join_and_leave_a_running_batch(
        self, generator: Generator, model: PreTrainedModel
    ) -> None:
        async def later(index: int) -> list[Completion]:
            for _ in range(3 * index):
                await asyncio.sleep(0)
            return await generator.generate(PROMPTS[index % 3], samplings[index])

        samplings = [Sampling(max_tokens=40 - 3 * index, seed=index) for index in range(12)]
        for index, (completion,) in enumerate(await gather(map(later, range(12)))):
            self.check(completion, model, PROMPTS[index % 3], samplings[index])

    async def test_cancelling_one_leaves_the_others_as_they_were(
        self, generator: Generator
    ) -> None:
        sampling = Sampling(max_tokens=40, n=2, seed=8)
        alone = await generator.generate(PROMPTS[2], sampling)
        doomed = [
            asyncio.create_task(generator.generate(prompt, replace(sampling, n=3)))
            for prompt in PROMPTS
        ]
        kept = asyncio.create_task(generator.generate(PROMPTS[2], sampling))
        start = (await generator.stats())["tokens"]
        while (await generator.stats())["tokens"] < start + 20:
            await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        results = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        (among,) = await gather([kept])
        assert tokens(among) == tokens(alone)
        assert tokens(await generator.generate(PROMPTS[2], sampling)) == tokens(alone)

    async def test_closing_fails_what_is_pending(self, generator: Generator) -> None:
        pending = asyncio.create_task(generator.generate(PROMPTS[0], Sampling(max_tokens=80)))
        await asyncio.sleep(0)
        await generator.close()
        with pytest.raises(ForgeError):
            await asyncio.wait_for(pending, PATIENCE)

    # Prompts that cannot be

    @pytest.mark.parametrize("prompt", [[], [5] * WINDOW, [5] * (WINDOW + 1), [3, 100_000], [-1]])
    async def test_an_impossible_prompt_is_refused(
        self, generator: Generator, prompt: list[int]
    ) -> None:
        with pytest.raises(NoRoom if len(prompt) >= WINDOW else DataError):
            await generator.generate(prompt, Sampling(max_tokens=4))
        assert await generator.generate(PROMPTS[0], Sampling(max_tokens=1))

    def check(
        self,
        completion: Completion,
        model: PreTrainedModel,
        prompt: Sequence[int],
        sampling: Sampling,
    ) -> None:
        """Compare a completion's logprobs with a forward pass of one model."""
        logits = forward(model, (*prompt, *completion.tokens))[len(prompt) - 1 : -1]
        self.compare(completion, logits, sampling)

    def check_in_flight(
        self,
        completion: Completion,
        models: tuple[PreTrainedModel, PreTrainedModel],
        prompt: Sequence[int],
        sampling: Sampling,
    ) -> None:
        """Compare with the model of each token's version."""
        old = list(completion.versions).count(0)
        whole = (*prompt, *completion.tokens)
        if not self.keeps_cache_in_flight or old == 0:
            rows = [forward(model, whole)[len(prompt) - 1 : -1] for model in models]
            logits = torch.cat((rows[0][:old], rows[1][old:]))
        else:
            # The first token of the new weights follows the last of the old ones, whose keys and
            # values are the new weights' own; all before it are the old weights'.
            seam = len(prompt) + old - 1
            with torch.no_grad():
                past = models[0](input_ids=torch.tensor([whole[:seam]]), use_cache=True)
                rest = models[1](
                    input_ids=torch.tensor([whole[seam:]]), past_key_values=past.past_key_values
                )
            logits = torch.cat((past.logits[0], rest.logits[0])).float()[len(prompt) - 1 : -1]
        self.compare(completion, logits, sampling)

    def compare(self, completion: Completion, logits: torch.Tensor, sampling: Sampling) -> None:
        """Compare a completion's logprobs with those of the distributions it was drawn from.

        Args:
            completion: of L tokens.
            logits: that each of its tokens was drawn from. [L, V]
            sampling: how it was drawn.
        """
        for place, (token, logprob, row) in enumerate(
            zip(completion.tokens, completion.logprobs, logits, strict=True)
        ):
            expected = distribution(row, sampling).get(token)
            assert expected is not None, f"token {token} at {place} is outside top-k or top-p"
            assert abs(logprob - expected) <= self.logprob_tolerance, (
                f"logprob of token {token} at {place} is {logprob}, not {expected}"
            )


async def publish(end: Transport, version: int, model: PreTrainedModel) -> WeightManifest:
    """Publish a model as a trainer does: tied weights once."""
    return await end.publish(version, model.named_parameters())


async def gather(calls: Iterable[Any]) -> list[list[Completion]]:
    """Await all, with patience."""
    return await asyncio.wait_for(asyncio.gather(*calls), PATIENCE)


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [list(completion.tokens) for completion in completions]
