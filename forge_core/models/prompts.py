"""Prompts to tokens: the one place where text that comes before a completion is tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_core.errors import DataError
from forge_core.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a prompt, ready for a completion to follow.

    Plain text gets the special tokens the tokenizer itself puts in front (Llama's begin-of-text);
    messages are rendered by the model's chat template, which brings its own.

    Raises:
        DataError: messages for a model without chat template.
    """
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt))
    return _render(prompt, tokenizer, add_generation_prompt=True)


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of text that goes on where other tokens ended: no special tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def encode_reply(
    prompt: Prompt, completion: str, observation: str, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Token ids an environment's answer adds behind a completion, up to where the next one begins.

    For a chat it is what the template puts between an assistant's text and the next one: the end of
    the turn (unless the completion's own stop token was it), the user's message, the next opening.
    It is found by rendering, never by tokenizing the completion again.

    Raises:
        DataError: the template rewrites earlier turns, so that nothing can be appended.
    """
    if isinstance(prompt, str):
        return encode_text(observation, tokenizer)
    spoken: Sequence[Message] = (*prompt, Message("assistant", completion))
    before = _render_text(spoken, tokenizer, add_generation_prompt=False)
    after = _render_text(
        (*spoken, Message("user", observation)), tokenizer, add_generation_prompt=True
    )
    if not after.startswith(before):
        raise DataError(
            "the model's chat template rewrites earlier turns; multi-turn episodes need one that "
            "only appends"
        )
    end_of_turn = before[before.rindex(completion) + len(completion) :] if completion else ""
    stop = tokenizer.eos_token or ""
    closing = end_of_turn.removeprefix(stop)
    return encode_text(closing + after[len(before) :], tokenizer)


def prompt_text(prompt: Prompt) -> str:
    """What a person, or a reward, sees of a prompt."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message.role}: {message.content}" for message in prompt)


def _render(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, add_generation_prompt: bool
) -> list[int]:
    # The template's text already holds every special token.
    return encode_text(
        _render_text(messages, tokenizer, add_generation_prompt=add_generation_prompt), tokenizer
    )


def _render_text(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, add_generation_prompt: bool
) -> str:
    if not tokenizer.chat_template:
        raise DataError(
            "the task's prompt is a chat, but the model's tokenizer has no chat template; "
            "use plain prompts or another model"
        )
    text = tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    assert isinstance(text, str)
    return text
