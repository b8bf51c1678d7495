"""Continuous batching: which samples run, step by step. Synchronous; knows nothing of asyncio.

A sample waits until a row is free, is prefilled together with the others that waited, then gets a
token in each step until it stops, and leaves its row to the next.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from forge_core import Completion, FinishReason, RunFailed, Sampling
from forge_torch.generator.cache import fill_holes
from forge_torch.generator.decoder import Decoder
from forge_torch.generator.sampling import BatchSampler, uniform_stream

_PREFILL_TOKENS = 8192
"""Tokens of a prefill pass, padding included; a longer prompt has a pass of its own."""

_SHORT_PROMPT = 64
"""Below this, padding costs less than another pass."""


@dataclass(slots=True, eq=False)
class Sample:
    """A completion that is being sampled."""

    request: Request
    index: int
    uniforms: random.Random
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))

    def draw(self) -> float:
        """The uniform of the next position."""
        return self.uniforms.random()


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and its ``sampling.n`` samples.

    Args:
        prompt: token ids, checked.
        sampling: as asked for.
        max_tokens: of a completion, within the window.
        on_token: called with each token as it is sampled: id, logprob, version.
        ends_text: whether the last of some tokens completes a string that ends a completion.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    on_token: Callable[[int, float, int], None] | None = None
    ends_text: Callable[[Sequence[int]], bool] | None = None
    stops: frozenset[int] = field(init=False)
    completions: dict[int, Completion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stops = frozenset(self.sampling.stop_token_ids)

    @property
    def done(self) -> bool:
        return len(self.completions) == self.sampling.n


class Engine:
    """Decodes the samples of many requests together.

    Args:
        decoder: the model.
        device: where it runs.
        max_rows: samples decoded at once.
    """

    def __init__(self, decoder: Decoder, device: torch.device, max_rows: int) -> None:
        self.version = 0
        self.tokens_sampled = 0
        self.prompt_tokens = 0
        self.steps = 0
        self._decoder = decoder
        self._device = device
        self._max_rows = max_rows
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self.reset()

    @property
    def running(self) -> int:
        """Samples that hold a row."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Samples that wait for a row."""
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue the samples of a request; they join the batch in the next step with a free row."""
        for index in range(request.sampling.n):
            stream = uniform_stream(request.sampling.seed, index)
            self._waiting.append(Sample(request, index, stream))

    def remove(self, request: Request) -> None:
        """Free the rows of a request at once."""
        self._waiting = deque(sample for sample in self._waiting if sample.request is not request)
        self._keep([sample.request is not request for sample in self._running])

    def reset(self) -> None:
        """Forget all samples and what the cache holds."""
        self._waiting.clear()
        self._running = []
        self._cache = self._decoder.new_cache()
        self._tokens = torch.zeros(0, dtype=torch.int64, device=self._device)
        self._sampler: BatchSampler | None = None

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Sample a token for every row, after those that waited have got theirs.

        Returns:
            The requests that this completed.

        Raises:
            RunFailed: the model's logits are not finite.
        """
        logits = []
        if self._running:
            self._cache.extend()
            logits.append(self._decoder.forward(self._tokens.unsqueeze(-1), self._cache))
        if self._waiting and len(self._running) < self._max_rows:
            logits += self._prefill(self._admit())
        if not self._running:
            return []
        self._sample(torch.cat(logits) if len(logits) > 1 else logits[0])
        return self._retire()

    def _admit(self) -> list[Sample]:
        """Take waiting samples, first come first served, as far as there are rows."""
        count = min(len(self._waiting), self._max_rows - len(self._running))
        return [self._waiting.popleft() for _ in range(count)]

    def _prefill(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Compute each different prompt once, and give every sample a row with a copy of it.

        Returns:
            Logits of the new rows, in their order.
        """
        by_prompt: dict[tuple[int, ...], list[Sample]] = {}
        for sample in samples:
            by_prompt.setdefault(sample.request.prompt, []).append(sample)
        logits = []
        for prompts in _buckets(by_prompt):
            lengths = [len(prompt) for prompt in prompts]
            padded = [[0] * (max(lengths) - len(prompt)) + list(prompt) for prompt in prompts]
            fresh = self._decoder.new_cache()
            fresh.begin(lengths)
            outputs = self._decoder.forward(torch.tensor(padded, device=self._device), fresh)
            sources = [row for row, prompt in enumerate(prompts) for _ in by_prompt[prompt]]
            self._cache.adopt(fresh, sources)
            self._running += [sample for prompt in prompts for sample in by_prompt[prompt]]
            logits.append(outputs[sources])
            self.prompt_tokens += sum(lengths)
        self._sampler = None
        return logits

    def _sample(self, logits: torch.Tensor) -> None:
        if self._sampler is None:
            samplings = [sample.request.sampling for sample in self._running]
            self._sampler = BatchSampler(samplings, self._device)
        uniforms = torch.tensor(
            [sample.draw() for sample in self._running], dtype=torch.float64, device=self._device
        )
        self._tokens, logprobs = self._sampler(logits, uniforms)
        # The step's only wait for the device.
        tokens, values = self._tokens.tolist(), logprobs.tolist()
        if not math.isfinite(sum(values)):
            raise RunFailed(
                f"logits are not finite (weights of version {self.version})",
                component="generator torch",
            )
        for sample, token, logprob in zip(self._running, tokens, values, strict=True):
            sample.tokens.append(token)
            sample.logprobs.append(logprob)
            sample.versions.append(self.version)
            if sample.request.on_token is not None:
                sample.request.on_token(token, logprob, self.version)
        self.tokens_sampled += len(tokens)
        self.steps += 1

    def _retire(self) -> list[Request]:
        """Complete the samples that stopped or are as long as allowed."""
        finished = []
        alive = []
        for sample in self._running:
            request = sample.request
            reason: FinishReason | None = None
            if sample.tokens[-1] in request.stops or (
                request.ends_text is not None and request.ends_text(sample.tokens)
            ):
                reason = "stop"
            elif len(sample.tokens) >= request.max_tokens:
                reason = "length"
            alive.append(reason is None)
            if reason is not None:
                request.completions[sample.index] = Completion(
                    np.frombuffer(sample.tokens, np.int32),
                    np.frombuffer(sample.logprobs, np.float32),
                    np.frombuffer(sample.versions, np.int32),
                    reason,
                )
                if request.done:
                    finished.append(request)
        self._keep(alive)
        return finished

    @torch.inference_mode()
    def _keep(self, alive: Sequence[bool]) -> None:
        if all(alive):
            return
        order = fill_holes(alive)
        self._running = [self._running[row] for row in order]
        self._cache.keep(order)
        self._tokens = self._tokens[torch.tensor(order, dtype=torch.int64, device=self._device)]
        self._sampler = None


def _buckets(prompts: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Split prompts into prefill passes of similar length, so that little of a pass is padding."""
    buckets: list[list[tuple[int, ...]]] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        longest = len(buckets[-1][0]) if buckets else 0
        if (
            buckets
            and (len(buckets[-1]) + 1) * longest <= _PREFILL_TOKENS
            and (2 * len(prompt) >= longest or longest <= _SHORT_PROMPT)
        ):
            buckets[-1].append(prompt)
        else:
            buckets.append([prompt])
    return buckets
