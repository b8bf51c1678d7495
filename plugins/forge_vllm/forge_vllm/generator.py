"""The component: requests and weights, checked on their way to the engine and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING

from forge_core import (
    BuildContext,
    Completion,
    CompletionPart,
    ConfigError,
    DataError,
    ForgeError,
    NoRoom,
    PromptRefused,
    Sampling,
    WeightManifest,
    WeightMismatch,
)
from forge_models.folder import check_folder
from forge_tensors.compilation import missing_for_compilation
from forge_vllm import argument_names
from forge_vllm.checks import check_generator, check_transport, generator_location
from forge_vllm.engine_args import engine_args, refusal, set_environment
from forge_vllm.kernels import (
    children_run_uncompiled,
    run_uncompiled_here,
)
from forge_vllm.sampling import (
    RequestParams,
    check_sampling,
    completion,
    completion_part,
    is_refusal,
)
from forge_vllm.settings import VllmSettings
from forge_vllm.supported import check_model

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from forge_core import Transport
    from forge_vllm.engine import Engine
    from forge_vllm.server import PolicyServer

log = logging.getLogger(__name__)


class VllmGenerator:
    """Serves any number of ``generate`` calls at once from vLLM's continuous batching.

    Raises:
        ConfigError: vLLM refuses its arguments, or a second engine was asked for in this process.
        DataError: the model folder cannot be loaded.
    """

    def __init__(self, settings: VllmSettings, context: BuildContext) -> None:
        check_generator(settings, context)
        if context.model.path is None:
            raise ConfigError("model.path: generator vllm needs a model folder")
        check_folder(
            context.model.path,
            trust_remote_code=context.model.trust_remote_code,
            allow_pickle=context.model.allow_pickle,
        )
        version = argument_names.vllm_version()
        if version != argument_names.TESTED:
            log.warning(
                "vLLM %s is not the version tested with Forge: %s", version, argument_names.TESTED
            )
        self._settings = settings
        self._context = context
        self._transport: Transport | None = None
        self._engine = self._start()
        self._window: int = self._engine.vllm_config.model_config.max_model_len
        self._vocabulary: int = self._engine.vllm_config.model_config.get_vocab_size()
        self._params = RequestParams(settings.sampling)
        self._updating = asyncio.Lock()
        self._unusable: ForgeError | None = None
        self._server: PolicyServer | None = None
        self._version = 0
        self._requests = 0
        self._tokens = 0
        self._prompt_tokens = 0
        self._running = 0

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        """Sample ``sampling.n`` completions. Cancelling this call aborts them in the engine.

        Raises:
            NoRoom: the prompt leaves no room in the window.
            PromptRefused: the prompt is empty.
            DataError: it holds an unknown token, or the sampling is out of its range.
            ReplicaDied: the engine is gone.
            WeightMismatch: the last weight update failed.
        """
        most = self._most_tokens(prompt, sampling)
        params = [self._params.of(sampling, index, most) for index in range(sampling.n)]
        self._running += sampling.n
        try:
            outputs = await self._engine.generate(prompt, params, sampling.priority)
        except Exception as error:
            if is_refusal(error):
                raise DataError(f"vLLM refuses the request: {error}") from error
            raise
        finally:
            self._running -= sampling.n
        completions = [completion(output) for output in outputs]
        self._requests += 1
        self._prompt_tokens += len(prompt)
        self._tokens += sum(len(each.tokens) for each in completions)
        return completions

    async def stream(
        self, prompt: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[CompletionPart]:
        """Sample one completion, handed out while it is sampled.

        Raises:
            DataError: as ``generate``, or ``sampling.n`` is not 1.
            ReplicaDied: the engine is gone.
            WeightMismatch: the last weight update failed.
        """
        if sampling.n != 1:
            raise DataError(f"sampling.n is {sampling.n}; a stream is of one completion")
        most = self._most_tokens(prompt, sampling)
        params = self._params.of(sampling, 0, most, stream=True)
        count = 0
        self._running += 1
        try:
            async with aclosing(self._engine.stream(prompt, params, sampling.priority)) as outputs:
                async for output, spans in outputs:
                    part = completion_part(output, spans, count)
                    count += len(part.tokens)
                    yield part
            self._requests += 1
        finally:
            self._running -= 1
            self._tokens += count

    async def update_weights(self, manifest: WeightManifest) -> WeightManifest:
        """Swap the weights between two steps of the engine.

        Requests in flight go on as the settings' ``pause`` says. The new weights compute their past
        again, so that every token from then on is sampled by them alone.

        Raises:
            WeightMismatch: the version is older than the one held, or its tensors do not fit the
                model. After a failed update there is no serving before a good one.
            ReplicaDied: the engine is gone.
        """
        if self._context.transport is None:
            raise ConfigError("transport: generator vllm has none to take weights from")
        async with self._updating:
            if manifest.version < self._version:
                raise WeightMismatch(
                    f"version {manifest.version} is older than version {self._version}, which the "
                    "generator holds"
                )
            server = self._server
            try:
                with server.loading(manifest.version) if server is not None else nullcontext():
                    held = await self._engine.load(manifest.version, self._settings.pause)
            except BaseException as error:
                self._unusable = WeightMismatch(
                    f"the update to version {manifest.version} failed: "
                    f"{type(error).__name__}: {error}"
                )
                raise
            self._version = manifest.version
            self._unusable = None
        return held

    async def serve(self) -> str | None:
        """Open the OpenAI-compatible address of ``settings.serve``; see ``ServingGenerator``.

        Raises:
            ConfigError: vLLM refuses the settings, or the port is in use.
        """
        if self._settings.serve is None:
            return None
        if self._server is None:
            from forge_vllm.server import PolicyServer

            assert self._engine.client is not None
            self._server = await PolicyServer.start(
                self._engine.client,
                self._settings.serve,
                version=self._version,
                replica=self._context.replica,
            )
        return self._server.address

    async def stats(self) -> Mapping[str, float]:
        """Counters since the start, and the samples under way."""
        return {
            "requests": self._requests,
            "tokens": self._tokens + self._engine.tokens_in_flight(),
            "prompt_tokens": self._prompt_tokens,
            "running": self._running,
        }

    async def close(self) -> None:
        """Fail what is pending and end the engine."""
        if self._server is not None:
            await self._server.close()
            self._server = None
        await self._engine.close()
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    def _start(self) -> Engine:
        set_environment()
        args = engine_args(self._settings, self._context)
        separate = generator_location(self._settings).own_process
        uncompiled = self._runs_uncompiled(args)
        try:
            check_model(args, separate=separate)
            if separate:
                check_transport(self._context, "a GPU")
                from forge_vllm.engine_process import SeparateEngine

                with children_run_uncompiled() if uncompiled else nullcontext():
                    return SeparateEngine(args, self._context)
            if uncompiled:
                run_uncompiled_here()
            from forge_vllm.inprocess import InProcessEngine

            if self._context.transport is not None:
                self._transport = self._context.transport.build(self._context)
            return InProcessEngine(args, self._transport)
        except ForgeError:
            raise
        except Exception as error:
            raise refusal(error) from error

    @staticmethod
    def _runs_uncompiled(args: AsyncEngineArgs) -> bool:
        """Whether what vLLM compiles by default is to run as it is, since it cannot be compiled."""
        from vllm.platforms import current_platform

        if not current_platform.is_cpu() or (missing := missing_for_compilation()) is None:
            return False
        if not args.enforce_eager:
            raise ConfigError(
                f"generator.engine.enforce_eager: vLLM cannot compile the model without {missing}"
            )
        log.info("vLLM's sampler runs uncompiled, without %s", missing)
        return True

    def _most_tokens(self, prompt: Sequence[int], sampling: Sampling) -> int:
        """Tokens that a completion may have; raises for what cannot be sampled."""
        if self._unusable is not None:
            raise self._unusable
        check_sampling(sampling)
        if not prompt:
            raise PromptRefused("the prompt is empty")
        if len(prompt) >= self._window:
            raise NoRoom(
                f"the prompt's {len(prompt)} tokens leave no room in the window of {self._window}"
            )
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self._vocabulary:
                raise DataError(
                    f"token id {token} of the prompt is outside the vocabulary (0 to "
                    f"{self._vocabulary - 1})"
                )
        return min(sampling.max_tokens, self._window - len(prompt))
