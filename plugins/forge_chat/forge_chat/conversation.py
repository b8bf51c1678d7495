"""A conversation with a generator: history in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from forge_chat.text_stream import TextStream
from forge_core import (
    CompletionPart,
    FinishReason,
    Generator,
    Message,
    Sampling,
    StreamingGenerator,
    derive_seed,
)
from forge_models.prompts import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Conversation:
    """Turns with one generator.

    Args:
        generator: who answers; pieces come as they are sampled if it streams.
        tokenizer: with a chat template, every message goes in behind all that was said before;
            without one, messages go in as they are, each by itself.
        sampling: of each answer; with a seed, each turn has one of its own derived from it.
        system: a system message to begin with.
        raw: leave the chat template out.
    """

    def __init__(
        self,
        generator: Generator,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._opening = (Message("system", system),) if system is not None else ()
        self._turns = 0
        self.remembers = bool(tokenizer.chat_template) and not raw
        self.history: tuple[Message, ...] = self._opening
        self.finish_reason: FinishReason | None = None
        """How the last answer ended; None: it was not finished."""

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.history = self._opening

    async def say(self, text: str) -> AsyncGenerator[str]:
        """Say something; yields the answer in pieces.

        Closed before its end, what was said so far stays in the history.

        Raises:
            DataError: the conversation has no room left in the window, or cannot be tokenized; the
                history is as before.
        """
        messages = (*self.history, Message("user", text))
        prompt = encode_prompt(messages if self.remembers else text, self._tokenizer)
        sampling = self._sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=derive_seed(sampling.seed, "turn", self._turns))
        self._turns += 1
        self.finish_reason = None
        stream = TextStream(self._tokenizer)
        said: list[str] = []
        try:
            async with aclosing(self._parts(prompt, sampling)) as parts:
                async for part in parts:
                    said.append(stream.add(part.tokens))
                    yield said[-1]
                    self.finish_reason = part.finish_reason
            said.append(stream.end())
            yield said[-1]
        finally:
            if self.remembers and any(said):
                self.history = (*messages, Message("assistant", "".join(said)))

    async def _parts(
        self, prompt: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[CompletionPart]:
        generator = self._generator
        if isinstance(generator, StreamingGenerator):
            async with aclosing(generator.stream(prompt, sampling)) as parts:
                async for part in parts:
                    yield part
            return
        (whole,) = await generator.generate(prompt, sampling)
        yield CompletionPart(
            whole.tokens.tolist(),
            whole.logprobs.tolist(),
            whole.versions.tolist(),
            whole.finish_reason,
        )
