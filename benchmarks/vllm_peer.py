"""One engine in one process, Forge's service or vLLM itself: the worker of vllm_service.py.

    python vllm_peer.py --peer forge|bare --place process|in-process --model FOLDER

Prints `{"ready": true}` when the engine is up, then answers each line of JSON on its standard input
with one on its standard output:

    {"concurrency": 64, "tokens": 128}   that many requests at once -> {"seconds", "tokens"}
    {"updates": 5}                       that many weight updates -> {"seconds": [...]}

Both peers hold the same engine arguments and make the same requests: 16 random prompt tokens,
exactly `tokens` sampled ones at temperature 1, the logprob of each. An update gives the engine
every tensor again, from this host's memory: vLLM's own `reload_weights` from an iterator of
tensors, and Forge's handshake from transport `shm`, with the pause of generation and the checksum
of what was loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 16
FIRST_CHARACTER = 2  # after the padding and end tokens of tiny_model.py
ENGINE: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "kv_cache_memory_bytes": 1 << 30,
}
"""Of both peers."""


class Peer(ABC):
    """An engine that samples and takes weights."""

    @abstractmethod
    async def sample(self, prompts: list[list[int]], tokens: int) -> int:
        """Sample one completion for each prompt, all at once; the tokens sampled."""

    @abstractmethod
    async def update(self) -> float:
        """Give the engine all weights again; the seconds that took."""

    @abstractmethod
    async def close(self) -> None: ...


class ForgePeer(Peer):
    """A Forge service with one replica of generator `vllm`."""

    @classmethod
    async def start(cls, model: Path, place: str) -> ForgePeer:
        from forge_core import (
            BuildContext,
            DistributedSection,
            ModelSection,
            Selection,
            TrainingSection,
        )
        from forge_local.runtime import LocalRuntime
        from forge_models.folder import load_model
        from forge_services.service import Service
        from forge_torch.plugin import SHM
        from forge_torch.settings import ShmSettings
        from forge_vllm.plugin import GENERATOR
        from forge_vllm.settings import VllmSettings

        self = cls()
        context = BuildContext(
            model=ModelSection(path=model),
            training=TrainingSection(),
            distributed=DistributedSection(),
            channel=f"benchmark/{uuid.uuid4().hex}",
            transport=Selection(family="transport", component=SHM, settings=ShmSettings()),
        )
        assert context.transport is not None
        self._publisher = context.transport.build(context)
        self._model = load_model(model)
        self._version = 0
        settings = VllmSettings(engine=ENGINE, engine_process=place == "process")
        selection = Selection(family="generator", component=GENERATOR, settings=settings)
        self._service = await Service.start(LocalRuntime(), selection, context, name="policy")
        return self

    async def sample(self, prompts: list[list[int]], tokens: int) -> int:
        from forge_core import Sampling

        sampling = Sampling(max_tokens=tokens)
        answers = await asyncio.gather(
            *(self._service.generate.route(prompt, sampling) for prompt in prompts)
        )
        return sum(len(completion.tokens) for (completion,) in answers)

    async def update(self) -> float:
        from forge_services.weight_update import update_weights

        self._version += 1
        # Publishing is the trainer's time.
        manifest = await self._publisher.publish(self._version, self._model.named_parameters())
        start = time.perf_counter()
        await update_weights(self._service, manifest)
        seconds = time.perf_counter() - start
        await self._publisher.drop(self._version - 1)
        return seconds

    async def close(self) -> None:
        await self._service.close()
        await self._publisher.close()


def bare_arguments(model: Path) -> Any:
    """vLLM's arguments, as generator `vllm` gives them."""
    from forge_core import BuildContext, DistributedSection, ModelSection, TrainingSection
    from forge_vllm.engine_args import engine_args, set_environment
    from forge_vllm.settings import VllmSettings

    set_environment()
    context = BuildContext(
        model=ModelSection(path=model),
        training=TrainingSection(),
        distributed=DistributedSection(),
    )
    return engine_args(VllmSettings(engine=ENGINE), context)


def bare_sampling(tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=1.0,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


class BareInProcess(Peer):
    """vLLM's synchronous engine, stepped in this process."""

    def __init__(self, model: Path) -> None:
        arguments = bare_arguments(model)
        from vllm.v1.engine.llm_engine import LLMEngine

        from forge_models.folder import load_model

        self._engine = LLMEngine.from_engine_args(arguments)
        self._model = load_model(model)
        self._named = 0

    async def sample(self, prompts: list[list[int]], tokens: int) -> int:
        params = bare_sampling(tokens)
        for prompt in prompts:
            self._named += 1
            request = {"prompt_token_ids": prompt}
            self._engine.add_request(str(self._named), request, params)
        count = 0
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            count += sum(len(each.outputs[0].token_ids) for each in outputs if each.finished)
        return count

    async def update(self) -> float:
        weights = self._tensors()
        start = time.perf_counter()
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        return time.perf_counter() - start

    def _tensors(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self._model.named_parameters():
            yield name, parameter.detach()

    async def close(self) -> None:
        self._engine.engine_core.shutdown()


class BareProcess(Peer):
    """vLLM's asynchronous engine, in a process of its own."""

    def __init__(self, model: Path) -> None:
        arguments = bare_arguments(model)
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments.worker_extension_cls = "vllm_peer.Reload"
        self._engine = AsyncLLM.from_engine_args(arguments)
        self._model = model
        self._named = 0

    async def sample(self, prompts: list[list[int]], tokens: int) -> int:
        params = bare_sampling(tokens)

        async def one(prompt: list[int]) -> int:
            self._named += 1
            request = {"prompt_token_ids": prompt}
            async for output in self._engine.generate(request, params, str(self._named)):
                last = output
            return len(last.outputs[0].token_ids)

        return sum(await asyncio.gather(*map(one, prompts)))

    async def update(self) -> float:
        await self._engine.collective_rpc("hold", args=(str(self._model),))
        start = time.perf_counter()
        await self._engine.collective_rpc("reload_held")
        return time.perf_counter() - start

    async def close(self) -> None:
        self._engine.shutdown()


class Reload:
    """Extends vLLM's worker: tensors wait in it, `reload_held` is `reload_weights` alone."""

    _held: dict[str, Any]

    def hold(self, folder: str) -> None:
        from safetensors.torch import load_file

        self._held = load_file(Path(folder) / "model.safetensors")

    def reload_held(self) -> None:
        self.reload_weights(weights_iterator=iter(self._held.items()))  # type: ignore[attr-defined]


async def start(peer: str, place: str, model: Path) -> Peer:
    if peer == "forge":
        return await ForgePeer.start(model, place)
    return BareProcess(model) if place == "process" else BareInProcess(model)


async def answer(peer: Peer, order: dict[str, int], rng: random.Random) -> dict[str, Any]:
    if "updates" in order:
        return {"seconds": [await peer.update() for _ in range(order["updates"])]}
    prompts = [
        [rng.randrange(FIRST_CHARACTER, 90) for _ in range(PROMPT_TOKENS)]
        for _ in range(order["concurrency"])
    ]
    begun = time.perf_counter()
    tokens = await peer.sample(prompts, order["tokens"])
    seconds = time.perf_counter() - begun
    assert tokens == order["concurrency"] * order["tokens"]
    return {"seconds": seconds, "tokens": tokens}


async def serve(arguments: argparse.Namespace) -> None:
    # vLLM and its processes print; only answers may reach the standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = await start(arguments.peer, arguments.place, arguments.model)
    rng = random.Random(0)
    try:
        print(json.dumps({"ready": True}), file=answers)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await answer(peer, json.loads(line), rng)), file=answers)
    finally:
        await peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", required=True, choices=["forge", "bare"])
    parser.add_argument("--place", required=True, choices=["process", "in-process"])
    parser.add_argument("--model", required=True, type=Path)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
