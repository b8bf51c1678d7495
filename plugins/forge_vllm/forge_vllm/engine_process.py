"""The engine in a process of its own: vLLM's asynchronous client of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.inputs import tokens_input
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from forge_core import ForgeError, ReplicaDied, WeightManifest, WeightMismatch
from forge_local.processes.frames import dumps
from forge_vllm.engine import PauseMode, Spans, spans, tokens_in_flight

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs

    from forge_core import BuildContext

T = TypeVar("T")

DEATH_CHECK = 0.2
"""Seconds between two looks at whether the engine lives, while a call waits that vLLM would leave
waiting after its death."""

SHUTDOWN_LIMIT = 5.0
"""Seconds that the engine has to end before it is killed."""


# A dead engine is reported by ours, and one that was closed is not dead. A filter, since vLLM's
# server parts reconfigure logging, which resets levels.
logging.getLogger("vllm.v1.engine.async_llm").addFilter(
    lambda record: record.levelno >= logging.CRITICAL
)


class SeparateEngine:
    """vLLM's engine in its own process, whose workers build their ends of the transport themselves.

    Args:
        args: vLLM's engine arguments.
        context: what the workers build the transport with.

    Raises:
        Exception: whatever vLLM raises when it cannot start.
    """

    def __init__(self, args: AsyncEngineArgs, context: BuildContext) -> None:
        with _interrupts_held():
            self._engine: Any = AsyncLLM.from_engine_args(args)
        # As vLLM's own server does: a full collection would hold up every answer for 0.3 s.
        freeze_gc_heap()
        self.vllm_config = self._engine.vllm_config
        self.client = self._engine
        self._processes = self._engine.engine_core.resources.engine_manager
        self._context = context
        self._connected = False
        self._named = 0
        self._requests: dict[str, ForgeError | None] = {}
        """Those under way, with the error that they shall end with."""
        self._closed = False

    async def generate(
        self, prompt: Sequence[int], params: Sequence[SamplingParams], priority: int
    ) -> list[RequestOutput]:
        """See ``Engine.generate``."""
        if len(params) == 1:
            return [await self._final(prompt, params[0], priority)]
        tasks = [asyncio.create_task(self._final(prompt, each, priority)) for each in params]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # until they are aborted
            raise

    async def stream(
        self, prompt: Sequence[int], params: SamplingParams, priority: int
    ) -> AsyncGenerator[tuple[RequestOutput, Spans]]:
        """See ``Engine.stream``."""
        name = self._new_name()
        async with aclosing(self._outputs(name, prompt, params, priority)) as outputs:
            async for output in outputs:
                yield output, spans(self._engine, name)

    async def load(self, version: int, mode: PauseMode) -> WeightManifest:
        """See ``Engine.load``."""
        if not self._connected:
            context = dumps(self._context)
            await self._answer(self._engine.collective_rpc("forge_connect", args=(context,)))
            self._connected = True
        prepare = self._engine.collective_rpc("forge_prepare", args=(version,))
        await asyncio.gather(self._answer(self._pause(mode)), self._answer(prepare))
        try:
            results, _ = await asyncio.gather(
                self._answer(self._engine.collective_rpc("forge_fetch")),
                self._answer(self._engine.update_weight_version(str(version))),
            )
            for refusal in filter(None, (result.pop("refusal", None) for result in results)):
                raise WeightMismatch(refusal)
        except BaseException as error:
            await self._fail_all(WeightMismatch(f"the update to version {version} failed: {error}"))
            raise
        finally:
            await self._answer(self._engine.resume_generation())
        return WeightManifest(version=version, **results[0])

    def tokens_in_flight(self) -> int:
        """See ``Engine.tokens_in_flight``."""
        return tokens_in_flight(self._engine)

    async def close(self) -> None:
        """See ``Engine.close``."""
        if self._closed:
            return
        self._closed = True
        if not self._engine.errored:
            with suppress(ReplicaDied):
                await self._fail_all(ReplicaDied("the generator was closed"))
                if self._connected:
                    await self._answer(self._engine.collective_rpc("forge_disconnect"))
        await asyncio.to_thread(self._end)
        gc.unfreeze()

    def _end(self) -> None:
        processes = self._processes.processes
        self._engine.shutdown(SHUTDOWN_LIMIT)
        # Its destructor would shut down again, and stumble when the interpreter ends.
        self._engine.shutdown = lambda: None
        for process in processes:  # vLLM kills what is late, but does not wait for its end
            process.join()

    def _new_name(self) -> str:
        self._named += 1
        return str(self._named)

    async def _final(
        self, prompt: Sequence[int], params: SamplingParams, priority: int
    ) -> RequestOutput:
        async with aclosing(self._outputs(self._new_name(), prompt, params, priority)) as outputs:
            async for output in outputs:
                if output.finished:
                    return output
        raise AssertionError("vLLM ended a request without a final output")

    async def _outputs(
        self, name: str, prompt: Sequence[int], params: SamplingParams, priority: int
    ) -> AsyncGenerator[RequestOutput]:
        """Of a request; closing it aborts what is not finished."""
        self._requests[name] = None
        tokens = tokens_input(list(prompt))  # has nothing to be rendered
        try:
            async with aclosing(
                self._engine.generate(tokens, params, name, priority=priority)
            ) as outputs:
                async for output in outputs:
                    if (doom := self._requests[name]) is not None:
                        raise doom
                    yield output
        except EngineDeadError as death:
            raise self._death() from death
        except EngineGenerateError as error:
            if self._closed or self._engine.errored:
                raise self._death() from error
            raise error.__cause__ or error from None
        finally:
            del self._requests[name]

    async def _pause(self, mode: PauseMode) -> None:
        """vLLM's ``pause_generation`` without the 20 ms that it sleeps at its end, so that callers
        have the outputs sampled before; no call here waits for them, and each names its version.

        Requests in flight are recomputed by the new weights, prompt and all.
        """
        if self._engine.renderer.mm_processor_cache is not None:
            await self._engine.renderer.clear_mm_cache_async()
        await self._engine.engine_core.pause_scheduler_async(mode=mode, clear_cache=True)

    async def _fail_all(self, error: ForgeError) -> None:
        """End every request with an error."""
        names = list(self._requests)
        self._requests.update(dict.fromkeys(names, error))
        await self._answer(self._engine.abort(names))

    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call that vLLM leaves unanswered when the engine dies.

        Raises:
            ReplicaDied: it died.
        """
        task = asyncio.create_task(call)
        try:
            while not task.done():
                if self._engine.errored:
                    raise self._death()
                await asyncio.wait({task}, timeout=DEATH_CHECK)
            return task.result()
        except EngineDeadError as death:
            raise self._death() from death
        finally:
            task.cancel()

    def _death(self) -> ReplicaDied:
        if self._closed:
            return ReplicaDied("the generator was closed")
        codes = self._processes.finished_procs()
        how = ", ".join(f"{name} ended with {code}" for name, code in codes.items())
        return ReplicaDied(f"vLLM's engine process died{f' ({how})' if how else ''}")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started meanwhile are deaf to ctrl-C and to the loss of the terminal, which go to
    all of a terminal's processes: the engine ends when its generator is closed, after the run has
    written its checkpoint."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
