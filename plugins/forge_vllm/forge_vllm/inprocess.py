"""The engine in this process, stepped by a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import gc
import random
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
)
from vllm.inputs import tokens_input
from vllm.triton_utils import dispatcher
from vllm.v1.engine import FinishReason
from vllm.v1.engine.llm_engine import LLMEngine

from forge_core import ConfigError, ReplicaDied, WeightManifest
from forge_vllm.engine import PauseMode, Spans, spans, tokens_in_flight
from forge_vllm.weight_loading import Copied, copy_some

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    from forge_core import Transport

Receiver = Callable[[Any], None]
"""Takes a result or an exception, on the event loop."""

_only_one = threading.Lock()
"""vLLM keeps its process groups in globals: an engine that ends takes them from the others."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Something for the thread to do between two steps.

    Args:
        run: does it.
        receivers: all get the exception when it fails, or when the engine ends before.
    """

    run: Callable[[], None]
    receivers: Sequence[Receiver] = ()


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

    client = None

    def __init__(self, args: EngineArgs, transport: Transport | None) -> None:
        if not _only_one.acquire(blocking=False):
            raise ConfigError(
                "generator vllm: one process can run one engine; for several replicas set "
                "generator.isolate=true or generator.engine_process=true"
            )
        self._groups_were_there = torch.distributed.is_initialized()
        try:
            with _process_left_as_it_was(), _proxies_passed_by():
                self._engine: Any = LLMEngine.from_engine_args(args)
        except BaseException:
            # What vLLM made before it failed would be in the way of the next engine or trainer.
            with _process_groups_kept(self._groups_were_there):
                destroy_model_parallel()
                destroy_distributed_environment()
            _only_one.release()
            raise
        self.vllm_config = self._engine.vllm_config
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._named = 0
        self._receivers: dict[str, Receiver] = {}  # of requests under way; the thread's
        self._lock = threading.Lock()  # for work and over
        self._work: deque[_Work] = deque()
        self._wake = threading.Event()
        self._waking = False  # the loop's: whether it will set that in its next round
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
        answers = [self._loop.create_future() for _ in params]
        names = self._submit(prompt, params, priority, [_into(answer) for answer in answers])
        try:
            return list(await asyncio.gather(*answers))
        except BaseException:
            self._withdraw(names)
            raise

    async def stream(
        self, prompt: Sequence[int], params: SamplingParams, priority: int
    ) -> AsyncGenerator[tuple[RequestOutput, Spans]]:
        """See ``Engine.stream``."""
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        names = self._submit(prompt, [params], priority, [outputs.put_nowait])
        finished = False
        try:
            while not finished:
                output = await outputs.get()
                if isinstance(output, BaseException):
                    raise output
                finished = output.finished
                yield output, spans(self._engine, *names)
        finally:
            if not finished:
                self._withdraw(names)

    async def load(self, version: int, mode: PauseMode) -> WeightManifest:
        """See ``Engine.load``."""
        assert self._transport is not None
        source = self._transport.fetch(version)
        answer: asyncio.Future[WeightManifest] = self._loop.create_future()

        def weights() -> Iterator[Copied]:
            while copies := asyncio.run_coroutine_threadsafe(
                copy_some(source), self._loop
            ).result():
                yield from copies

        def swap() -> None:
            self._tell([(_into(answer), self._swap(version, mode, weights()))])

        self._do(_Work(swap, [_into(answer)]))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await asyncio.wait({answer})  # half a swap would be worse than a late one
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
        gc.unfreeze()  # what vLLM froze at its start

    def _submit(
        self,
        prompt: Sequence[int],
        params: Sequence[SamplingParams],
        priority: int,
        receivers: Sequence[Receiver],
    ) -> list[str]:
        """Queue requests for the thread; returns their names."""
        names = [str(self._named + place) for place in range(len(params))]
        self._named += len(params)
        tokens = tokens_input(list(prompt))  # has nothing to be rendered

        def add() -> None:
            for name, each, receiver in zip(names, params, receivers, strict=True):
                self._engine.add_request(name, tokens, each, priority=priority)
                self._receivers[name] = receiver

        self._do(_Work(add, receivers))
        return names

    def _withdraw(self, names: Sequence[str]) -> None:
        """Abort those of the requests that are not finished."""
        with suppress(ReplicaDied):
            self._do(_Work(partial(self._abort, names)))

    def _do(self, work: _Work) -> None:
        with self._lock:
            if self._over is not None:
                raise ReplicaDied(self._over)
            self._work.append(work)
        if not self._waking:
            # Once all callers of this round of the loop have asked, so that they share a prefill.
            self._waking = True
            self._loop.call_soon(self._rouse)

    def _rouse(self) -> None:
        self._waking = False
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
            over = str(failed)
        finally:
            with self._lock:
                self._over = over
                left = [receiver for work in self._work for receiver in work.receivers]
                self._work.clear()
            self._fail([*left, *self._receivers.values()], ReplicaDied(over))
            self._receivers.clear()
            with _process_groups_kept(self._groups_were_there):
                self._engine.engine_core.shutdown()
            del self._engine
            _only_one.release()

    def _perform(self, work: _Work) -> None:
        try:
            work.run()
        except _EngineFailed as failed:
            self._fail(work.receivers, ReplicaDied(str(failed)))
            raise
        except Exception as error:
            self._fail(work.receivers, error)

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            raise _EngineFailed(f"vLLM's engine failed: {type(error).__name__}: {error}") from error
        if outputs:
            self._tell([(self._receiver(output), output) for output in outputs])

    def _receiver(self, output: RequestOutput) -> Receiver:
        if output.finished:
            return self._receivers.pop(output.request_id)
        return self._receivers[output.request_id]

    def _abort(self, names: Iterable[str]) -> None:
        here = [name for name in names if self._receivers.pop(name, None) is not None]
        self._engine.abort_request(here)

    def _swap(self, version: int, mode: PauseMode, weights: Iterator[Copied]) -> WeightManifest:
        if mode == "abort":
            self._cancel_all()
        while mode == "wait" and self._engine.has_unfinished_requests():
            self._step()
        # Requests in flight are recomputed by the new weights, prompt and all.
        self._engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        try:
            (held, *_) = self._engine.collective_rpc("forge_load", args=(weights,))
        except Exception as error:
            pending = dict(self._receivers)
            self._abort(pending)
            self._fail(pending.values(), error)
            raise
        self._engine.set_weight_version(str(version))
        return WeightManifest(version=version, **held)

    def _cancel_all(self) -> None:
        """End every request with what it has."""
        states = list(self._engine.output_processor.request_states.values())
        outputs = [
            state.make_request_output([], None, FinishReason.ABORT, None) for state in states
        ]
        self._engine.abort_request([state.request_id for state in states], internal=True)
        self._tell([(self._receiver(output), output) for output in outputs])

    # From the thread to the loop.

    def _fail(self, receivers: Iterable[Receiver], error: BaseException) -> None:
        self._tell([(receiver, error) for receiver in receivers])

    def _tell(self, results: Sequence[tuple[Receiver, Any]]) -> None:
        def receive() -> None:
            for receiver, result in results:
                receiver(result)

        with suppress(RuntimeError):  # the loop was closed: no call waits any more
            self._loop.call_soon_threadsafe(receive)


def _into(future: asyncio.Future[Any]) -> Receiver:
    def receive(result: Any) -> None:
        if future.done():  # cancelled
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    return receive


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
def _proxies_passed_by() -> Iterator[None]:
    """At its start vLLM asks every object of every module for its ``__dict__``. A proxy without an
    object (``flask.current_app``, once Flask is imported) raises RuntimeError at that: it has none.
    """

    def has(value: Any, name: str) -> bool:
        try:
            return hasattr(value, name)
        except RuntimeError:
            return False

    vars(dispatcher)["hasattr"] = has
    try:
        yield
    finally:
        del vars(dispatcher)["hasattr"]


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
