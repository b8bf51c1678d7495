"""Prompts to tokens: the one place where text that comes before a completion is tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_core import DataError, Message, Prompt, PromptRefused
from forge_models.chat_template import (
    PLACEHOLDER,
    Tools,
    check_nothing_lost,
    render,
    turn_end,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_prompt(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, tools: Tools = ()
) -> list[int]:
    """Token ids of a prompt, ready for a completion to follow.

    Plain text gets the special tokens the tokenizer itself puts in front (Llama's begin-of-text),
    never those it puts behind; messages are rendered by the chat template, which brings its own.

    Raises:
        PromptRefused: the template refuses the conversation or does not render all of it, there are
            tools without messages, or the tokenizer has no tokens for the text.
        DataError: messages for a model without chat template.
    """
    if not isinstance(prompt, str):
        text = render(prompt, tokenizer, tools=tools)
        check_nothing_lost(prompt, text, tokenizer, tools=tools)
        return encode_text(text, tokenizer)
    if tools:
        raise PromptRefused("a plain prompt has no place for tools; write it as messages")
    tokens = _encode(prompt, tokenizer, add_special_tokens=True)
    if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id:
        # Either the text ends so, or the tokenizer closes every text; a completion is to follow.
        plain = encode_text(prompt, tokenizer)
        if plain[-1:] != tokens[-1:]:
            tokens.pop()
    return tokens


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of text that goes on where other tokens ended: no special tokens.

    Raises:
        DataError: the tokenizer has no tokens for it.
    """
    return _encode(text, tokenizer, add_special_tokens=False)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the chat template ends an assistant's turn with (``<|im_end|>``).

    It may be another than the tokenizer's end-of-sequence token.

    Returns:
        None where there is no chat template, it ends a turn with ordinary text, or it refuses
        messages that are plain text.
    """
    if not tokenizer.chat_template:
        return None
    try:
        return turn_end(tokenizer).token
    except DataError:  # no chat can be had with it, plain text can
        return None


def encode_reply(
    conversation: Sequence[Message],
    answers: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    *,
    last_token: int,
    tools: Tools = (),
) -> list[int]:
    """Token ids that an environment's answer adds behind a completion of a chat.

    It is what the template puts between an assistant's text and the next one: the end of the turn
    (but for the stop token that the completion itself ended on), the answer's messages, the
    next opening. It is found by rendering; the completion is never tokenized again.

    Args:
        conversation: everything so far; the completion is its last message.
        answers: the answer's messages.
        tokenizer: of the model.
        last_token: of the completion.
        tools: of the conversation.

    Raises:
        DataError: the template rewrites earlier turns (as those do that drop the reasoning), so
            that what the policy has seen cannot be continued by appending.
    """
    *earlier, completion = conversation
    seen = render(earlier, tokenizer, tools=tools)
    whole = render([*conversation, *answers], tokenizer, tools=tools)
    marked = render([*earlier, Message("assistant", PLACEHOLDER), *answers], tokenizer, tools=tools)
    _, _, added = marked.rpartition(PLACEHOLDER)
    said = whole.removeprefix(seen).removesuffix(added)
    if seen + said + added != whole or said.strip() != completion.content.strip():
        raise DataError(
            "the model's chat template rewrites earlier turns; episodes of several turns need one "
            "that only appends"
        )
    if any(message.role != "user" or message.extra for message in answers):
        check_nothing_lost([*conversation, *answers], whole, tokenizer, tools=tools)
    stop = tokenizer.decode([last_token])
    assert isinstance(stop, str)
    if added.lstrip().startswith(stop):
        added = added.lstrip().removeprefix(stop)
    return encode_text(added, tokenizer)


def prompt_text(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, tools: Tools = ()) -> str:
    """A prompt as the policy sees it, for people and rewards: messages as the template renders
    them, up to where the completion begins.

    Raises:
        DataError: as ``encode_prompt``.
    """
    return prompt if isinstance(prompt, str) else render(prompt, tokenizer, tools=tools)


def _encode(
    text: str, tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool
) -> list[int]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        # The Rust tokenizer itself, where there is one: transformers' way to it costs four times as
        # much for a short text. Truncation and padding that were set up in it are not for us.
        if backend is not None and backend.truncation is None and backend.padding is None:
            return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    except Exception as error:  # the tokenizers library raises nothing narrower
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise PromptRefused(f"the model's tokenizer cannot encode {shown!r}: {error}") from error
