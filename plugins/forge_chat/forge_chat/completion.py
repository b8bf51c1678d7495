"""Completions of many prompts, from a service of generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_chat.prompts import GivenPrompt, encode
from forge_core import Completion, DataError, Sampling, UsageError
from forge_services.service import Service

if TYPE_CHECKING:
    from forge_core import Generator
    from forge_run.policy_source import PolicySource


@dataclass(frozen=True, slots=True)
class Answer:
    """The completions of one prompt, and their texts without special tokens."""

    given: GivenPrompt
    completions: Sequence[Completion]
    texts: Sequence[str]


@asynccontextmanager
async def generator_service(source: PolicySource) -> AsyncIterator[Service]:
    """The source's generator behind a service, on its runtime, with as many replicas as its config
    says; closed at the end.

    Raises:
        ForgeError: as the generator or the runtime raises.
    """
    runtime = source.runtime.build(source.context)
    try:
        service = await Service.start(
            runtime,
            source.generator,
            source.context,
            name="generator",
            placement=source.stage.generator_placement,
        )
        try:
            yield service
        finally:
            await service.close()
    finally:
        await runtime.close()


def in_process(source: PolicySource) -> Generator:
    """One replica of the source's generator, in this process; call it in a running event loop.

    Raises:
        UsageError: its config wants more than one process for a replica.
        ForgeError: as the generator raises.
    """
    procs = source.stage.generator_placement.procs
    if procs > 1:
        raise UsageError(
            f"generator.procs: the generator runs in this command's own process, not in {procs}; "
            "add generator.procs=1"
        )
    return source.generator.build(source.context)


async def generate(
    source: PolicySource, prompts: Sequence[GivenPrompt], sampling: Sampling, *, raw: bool = False
) -> AsyncGenerator[Answer]:
    """Complete all prompts at once; yield answers in the order of prompts, each when it is there.

    Args:
        source: weights, generator and tokenizer.
        prompts: what to complete.
        sampling: the same for all, seed included: a prompt's samples do not depend on its place.
        raw: leave the model's chat template out.

    Raises:
        DataError: a prompt cannot be tokenized or has no room in the window; says which.
        ForgeError: as the generator raises.
    """
    tokenizer = source.tokenizer
    encoded = [encode(given, tokenizer, raw=raw) for given in prompts]
    async with generator_service(source) as service:
        tasks = [
            asyncio.create_task(service.generate.route(tokens, sampling)) for tokens in encoded
        ]
        try:
            for given, task in zip(prompts, tasks, strict=True):
                try:
                    completions: list[Completion] = await task
                except DataError as error:
                    raise DataError(f"{given.where}: {error}") from error
                texts = [
                    tokenizer.decode(completion.tokens, skip_special_tokens=True)
                    for completion in completions
                ]
                yield Answer(given, completions, texts)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
