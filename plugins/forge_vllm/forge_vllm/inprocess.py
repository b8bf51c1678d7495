"""The engine in this process, stepped by a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import random
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.engine import FinishReason
from vllm.v1.engine.llm_engine import LLMEngine

from forge_core.errors import ConfigError, ReplicaDied
from forge_core.types import WeightManifest
from forge_vllm.engine import PauseMode, tokens_in_flight

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    from forge_core.protocols import Transport

Answer = asyncio.Future[Any]

_only_one = threading.Lock()
"""vLLM keeps its process groups in globals: an engine that ends takes them from the others."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Something for the thread to do between two steps.

    Args:
        run: does it.
        answers: all fail with it, or when the engine ends before.
    """

    run: Callable[[], None]
    answers: Sequence[Answer] = ()


class _EngineFailed(Exception):
    """vLLM raised while it made a step; it cannot go on."""


class InProcessEngine:
    """vLLM's synchronous engine. Its thread alone touches it, and hands over results to the loop.

    Args:
        args: vLLM's engine arguments.
        transport: this process's end, or None.

    Raises:
        ConfigError: this process runs another engine.
        Exception: whatever vLLM raises when it cannot start.
    """

    def __init__(self, args: EngineArgs, transport: Transport | None) -> None:
        if not _only_one.acquire(blocking=False):
            raise ConfigError(
                "generator vllm: one process can run one engine; for several replicas set "
                "generator.isolate=true or generator.engine_process=true"
            )
        self._groups_were_there = torch.distributed.is_initialized()
        try:
            with _process_left_as_it_was():
                self._engine: Any = LLMEngine.from_engine_args(args)
        except BaseException:
            _only_one.release()
            raise
        self.vllm_config = self._engine.vllm_config
        self._engine.set_weight_version("0")
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, Answer] = {}  # by request; the thread's
        self._named = 0
        self._lost_tokens = 0
        self._lock = threading.Lock()  # for the next three
        self._work: deque[_Work] = deque()
        self._wake = threading.Event()
        self._over: str | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._drive, name="vllm-engine", daemon=True)
        self._thread.start()
        atexit.register(self._end)  # torch does not outlive a thread that is killed in it

    # On the event loop.

    async def generate(
        self, prompt: Sequence[int], params: Sequence[SamplingParams], priority: int
    ) -> list[RequestOutput]:
        """See ``Engine.generate``."""
        names = [str(self._named + place) for place in range(len(params))]
        self._named += len(params)
        answers: list[Answer] = [self._loop.create_future() for _ in params]
        self._do(_Work(partial(self._add, names, answers, list(prompt), params, priority), answers))
        try:
            return list(await asyncio.gather(*answers))
        except BaseException:
            with suppress(ReplicaDied):
                self._do(_Work(partial(self._abort, names)))
            raise

    async def load(self, version: int, mode: PauseMode) -> WeightManifest:
        """See ``Engine.load``."""
        assert self._transport is not None
        source = self._transport.fetch(version)
        answer = self._loop.create_future()

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            async def pull() -> tuple[str, torch.Tensor] | None:
                return await anext(source, None)

            while pair := asyncio.run_coroutine_threadsafe(pull(), self._loop).result():
                yield pair

        def swap() -> None:
            self._settle([(answer, self._swap(version, mode, weights()))])

        self._do(_Work(swap, [answer]))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await asyncio.wait({answer})
            raise
        finally:
            await source.aclose()  # type: ignore[attr-defined]

    def tokens_in_flight(self) -> int:
        """See ``Engine.tokens_in_flight``."""
        return tokens_in_flight(self._engine)

    async def close(self) -> None:
        """See ``Engine.close``."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        atexit.unregister(self._end)

    def _do(self, work: _Work) -> None:
        with self._lock:
            if self._over is not None:
                raise ReplicaDied(self._over)
            self._work.append(work)
        self._wake.set()

    # In the thread.

    def _drive(self) -> None:
        over = "the generator was closed"
        try:
            while not self._closing:
                if not self._work and not self._engine.has_unfinished_requests():
                    self._wake.wait()
                self._wake.clear()
                while self._work:
                    self._perform(self._work.popleft())
                if self._engine.has_unfinished_requests():
                    self._step()
        except _EngineFailed as failed:
            error = failed.__cause__
            over = f"vLLM's engine failed: {type(error).__name__}: {error}"
        finally:
            with self._lock:
                self._over = over
                left = [answer for work in self._work for answer in work.answers]
                self._work.clear()
            self._fail([*left, *self._answers.values()], ReplicaDied(over))
            self._answers.clear()
            with _process_groups_kept(self._groups_were_there):
                self._engine.engine_core.shutdown()
            del self._engine
            _only_one.release()

    def _perform(self, work: _Work) -> None:
        try:
            work.run()
        except _EngineFailed as failed:
            self._fail(work.answers, ReplicaDied(f"vLLM's engine failed: {failed.__cause__}"))
            raise
        except Exception as error:
            self._fail(work.answers, error)

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            raise _EngineFailed from error
        if outputs:
            self._settle([(self._answers.pop(each.request_id), each) for each in outputs])

    def _add(
        self,
        names: Sequence[str],
        answers: Sequence[Answer],
        prompt: list[int],
        params: Sequence[SamplingParams],
        priority: int,
    ) -> None:
        for name, answer, each in zip(names, answers, params, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": prompt}, each, priority=priority)
            self._answers[name] = answer

    def _abort(self, names: Iterable[str]) -> None:
        here = [name for name in names if self._answers.pop(name, None) is not None]
        self._engine.abort_request(here)

    def _swap(
        self, version: int, mode: PauseMode, weights: Iterator[tuple[str, torch.Tensor]]
    ) -> WeightManifest:
        if mode == "abort":
            self._cancel_all()
        while mode == "wait" and self._engine.has_unfinished_requests():
            self._step()
        # Requests in flight are computed anew by the new weights, prompt and all.
        self._engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        try:
            (held, *_) = self._engine.collective_rpc("forge_load", args=(weights,))
        except Exception as error:
            failed = dict(self._answers)
            self._abort(failed)
            self._fail(failed.values(), error)
            raise
        self._engine.set_weight_version(str(version))
        return WeightManifest(version=version, **held)

    def _cancel_all(self) -> None:
        """End every request with what it has."""
        states = list(self._engine.output_processor.request_states.values())
        outputs = [state.make_request_output([], None, FinishReason.ABORT, None) for state in states]
        self._engine.abort_request([state.request_id for state in states], internal=True)
        self._settle([(self._answers.pop(each.request_id), each) for each in outputs])

    # From the thread to the loop.

    def _settle(self, results: Sequence[tuple[Answer, Any]]) -> None:
        def settle() -> None:
            for answer, result in results:
                if not answer.done():
                    answer.set_result(result)

        self._tell(settle)

    def _fail(self, answers: Iterable[Answer], error: BaseException) -> None:
        waiting = list(answers)

        def fail() -> None:
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(error)

        self._tell(fail)

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(what)


@contextmanager
def _process_left_as_it_was() -> Iterator[None]:
    """vLLM seeds every generator of random numbers at its start, and disables a torch function."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    set_num_threads = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


@contextmanager
def _process_groups_kept(wanted: bool) -> Iterator[None]:
    """An engine that ends destroys the default process group, also one that a trainer made."""
    destroy = torch.distributed.destroy_process_group

    def destroy_others(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    if wanted:
        torch.distributed.destroy_process_group = destroy_others
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy
