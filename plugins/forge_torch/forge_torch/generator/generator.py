"""The component: an asyncio front to the engine, and the weights it runs with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from forge_core import (
    BuildContext,
    Completion,
    CompletionPart,
    ConfigError,
    DataError,
    ForgeError,
    NoRoom,
    PromptRefused,
    RunFailed,
    Sampling,
    WeightManifest,
    WeightMismatch,
)
from forge_models.folder import load_model, load_tokenizer
from forge_models.rope import length_boundaries
from forge_torch.checks import check_boundaries
from forge_torch.generator.decoder import choose_decoder
from forge_torch.generator.engine import Engine, Request
from forge_torch.generator.self_test import ordinary_tokens
from forge_torch.generator.stop_strings import StopStrings
from forge_torch.generator.weight_swap import swap_weights
from forge_torch.settings import TorchGeneratorSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from forge_core import Transport


class TorchGenerator:
    """Serves any number of ``generate`` calls at once from one batch.

    One task makes steps on the event loop while there is work and gives way between them, so that
    which requests meet in a batch depends on the order of calls alone, not on time.

    Raises:
        ConfigError: the window, the device or the processes asked for are not available.
        DataError: the model folder cannot be loaded, or its architecture cannot be decoded.
    """

    def __init__(self, settings: TorchGeneratorSettings, context: BuildContext) -> None:
        path = context.model.path
        if path is None:
            raise ConfigError("model.path: generator torch needs a model folder")
        if context.world_size != 1:
            raise ConfigError(
                f"generator torch runs in one process, not in {context.world_size}; ask for more "
                "replicas instead of more processes"
            )
        device = _device(settings.device)

        def load() -> PreTrainedModel:
            return load_model(
                path,
                context.model.dtype,
                device,
                trust_remote_code=context.model.trust_remote_code,
                allow_pickle=context.model.allow_pickle,
            )

        model = load()
        self._window = _window(model, settings.max_model_len)
        self._context = context
        self._transport: Transport | None = None
        vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self._tokenizer = load_tokenizer(path, trust_remote_code=context.model.trust_remote_code)
        tokens = ordinary_tokens(self._tokenizer, vocab_size)
        self._decoder = choose_decoder(model, load, tokens)
        self._engine = Engine(self._decoder, device, settings.max_batch_rows)
        self._answers: dict[Request, asyncio.Future[list[Completion]]] = {}
        self._driver: asyncio.Task[None] | None = None
        self._weights_whole = asyncio.Lock()
        self._unusable: ForgeError | None = None
        self._requests = 0

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        """Sample ``sampling.n`` completions. Cancelling this call frees its rows at once.

        Raises:
            NoRoom: the prompt leaves no room in the window.
            PromptRefused: the prompt is empty.
            DataError: it holds an unknown token, or the sampling is out of its range.
            RunFailed: the logits are not finite, or the generator was closed.
            WeightMismatch: the last weight update failed.
        """
        return await self._answer(self._request(prompt, sampling))

    async def stream(
        self, prompt: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[CompletionPart]:
        """Sample one completion and yield each token as it comes.

        Raises:
            DataError: as ``generate``; also if ``sampling.n`` is not 1.
            RunFailed: as ``generate``.
            WeightMismatch: as ``generate``.
        """
        if sampling.n != 1:
            raise DataError(f"sampling.n is {sampling.n}; a stream is of one completion")
        parts: asyncio.Queue[CompletionPart | None] = asyncio.Queue()
        request = self._request(prompt, sampling)
        request.on_token = lambda token, logprob, version: parts.put_nowait(
            CompletionPart((token,), (logprob,), (version,))
        )
        answer = asyncio.create_task(self._answer(request))
        answer.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            (completion,) = await answer
            yield CompletionPart((), (), (), completion.finish_reason)
        finally:
            answer.cancel()
            await asyncio.wait({answer})

    async def _answer(self, request: Request) -> list[Completion]:
        """Have the request sampled. Cancelling this frees its rows at once."""
        if self._unusable is not None:
            raise self._unusable
        answer = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        self._engine.add(request)
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        try:
            completions: list[Completion] = await answer
        except asyncio.CancelledError:
            if self._answers.pop(request, None) is not None:
                self._engine.remove(request)
            raise
        return completions

    async def update_weights(self, manifest: WeightManifest) -> WeightManifest:
        """Swap the weights between two steps. Rows in flight keep their keys and values.

        So later tokens of a row in flight are sampled by the new weights over a past that the old
        ones saw; prompts that come later are the new weights' alone.

        Raises:
            WeightMismatch: the version is older than the one held, or its tensors do not fit the
                model. After a failed update there is no serving before a good one.
        """
        if self._context.transport is None:
            raise ConfigError("transport: generator torch has none to take weights from")
        if manifest.version < self._engine.version:
            raise WeightMismatch(
                f"version {manifest.version} is older than version {self._engine.version}, which "
                "the generator holds"
            )
        if self._transport is None:
            self._transport = self._context.transport.build(self._context)
        async with self._weights_whole:
            try:
                held = await swap_weights(
                    self._decoder, manifest.version, self._transport.fetch(manifest.version)
                )
            except BaseException as error:
                self._unusable = WeightMismatch(
                    f"the update to version {manifest.version} failed: "
                    f"{type(error).__name__}: {error}"
                )
                self._fail(self._unusable)
                raise
            self._engine.version = manifest.version
            self._unusable = None
        return held

    async def stats(self) -> Mapping[str, float]:
        """Counters since the start, and how many samples run and wait now."""
        return {
            "requests": self._requests,
            "tokens": self._engine.tokens_sampled,
            "prompt_tokens": self._engine.prompt_tokens,
            "steps": self._engine.steps,
            "running": self._engine.running,
            "waiting": self._engine.waiting,
        }

    async def close(self) -> None:
        """Fail what is pending and give everything back."""
        self._unusable = RunFailed("the generator was closed", component="generator torch")
        self._fail(self._unusable)
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait({self._driver})
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def _drive(self) -> None:
        """Step while there is work."""
        try:
            await self._gather()
            while self._answers:
                async with self._weights_whole:
                    finished = self._engine.step()
                for request in finished:
                    self._requests += 1
                    answer = self._answers.pop(request)
                    if not answer.done():  # cancelled, and not yet answered
                        completions = request.completions
                        answer.set_result([completions[index] for index in sorted(completions)])
                await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)
        finally:
            self._driver = None

    async def _gather(self) -> None:
        """Give callers that are on their way the time to join the first prefill."""
        seen = 0
        while len(self._answers) > seen:
            seen = len(self._answers)
            await asyncio.sleep(0)

    def _fail(self, error: BaseException) -> None:
        """Every pending call raises the error; the engine starts afresh."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error)
        self._engine.reset()

    def _request(self, prompt: Sequence[int], sampling: Sampling) -> Request:
        tokens = tuple(prompt)
        if not tokens:
            raise PromptRefused("the prompt is empty")
        if len(tokens) >= self._window:
            raise NoRoom(
                f"the prompt's {len(tokens)} tokens leave no room in the window of {self._window}"
            )
        vocabulary = self._decoder.vocab_size
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < vocabulary)
            raise DataError(
                f"token id {wrong} of the prompt is outside the vocabulary (0 to {vocabulary - 1})"
            )
        _check_sampling(sampling)
        request = Request(tokens, sampling, min(sampling.max_tokens, self._window - len(tokens)))
        if sampling.stop:
            request.ends_text = StopStrings(self._tokenizer, sampling.stop)
        return request


def _check_sampling(sampling: Sampling) -> None:
    for name, allowed, good in (
        ("n", "at least 1", sampling.n >= 1),
        ("max_tokens", "at least 1", sampling.max_tokens >= 1),
        ("temperature", "at least 0", 0 <= sampling.temperature < float("inf")),
        ("top_p", "above 0 and at most 1", 0 < sampling.top_p <= 1),
        ("top_k", "at least 0", sampling.top_k >= 0),
        ("stop", "without empty strings", all(sampling.stop)),
        ("priority", "0: generator torch serves in order of arrival", sampling.priority == 0),
    ):
        if not good:
            raise DataError(f"sampling.{name} is {getattr(sampling, name)}; it must be {allowed}")


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("generator.device: cuda was asked for, but torch finds no CUDA device")
    return torch.device(wanted)


def _window(model: PreTrainedModel, wanted: int | None) -> int:
    """Tokens of prompt and completion at most.

    Within them a token's rotary frequencies do not depend on how long the longest row of the batch
    is: where the model changes them beyond a length, that is the window.
    """
    config = model.config.get_text_config()
    limit: int | None = getattr(config, "max_position_embeddings", None)
    boundaries = length_boundaries(config)
    if boundaries:
        check_boundaries(wanted, boundaries)
        return wanted or boundaries[0]
    if limit is None:
        if wanted is None:
            raise ConfigError(
                "generator.max_model_len: give it, for the model's config does not say how many "
                "positions the model knows"
            )
        return wanted
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"generator.max_model_len: {wanted} is more than the {limit} positions the model knows"
        )
    return wanted or limit
