"""Prompts to tokens: the one place where text that comes before a completion is tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_core.errors import DataError, PromptRefused
from forge_core.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACEHOLDER = "@@completion@@"
"""Stands for a completion where only the template's text around it is wanted. A completion's own
text could be trimmed by the template, be empty, or occur in the template a second time."""


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a prompt, ready for a completion to follow.

    Plain text gets the special tokens the tokenizer itself puts in front (Llama's begin-of-text),
    never those it puts behind; messages are rendered by the chat template, which brings its own.

    Raises:
        PromptRefused: the template refuses the conversation, or the tokenizer has no tokens for the
            text.
        DataError: messages for a model without chat template.
    """
    if not isinstance(prompt, str):
        return encode_text(_render(prompt, tokenizer), tokenizer)
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


def encode_response(prompt: Prompt, response: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a whole response to a prompt, with the token that ends it.

    Raises:
        DataError: the tokenizer has no end-of-sequence token, or no tokens for the text.
    """
    end = None if isinstance(prompt, str) else end_of_turn(tokenizer)
    if end is None:
        end = tokenizer.eos_token_id
    if end is None:
        raise DataError("the model's tokenizer has no end-of-sequence token to learn to stop with")
    return [*encode_text(response, tokenizer), end]


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the chat template ends an assistant's turn with (``<|im_end|>``).

    It may be another than the tokenizer's end-of-sequence token.

    Returns:
        None where there is no chat template, or it ends a turn with ordinary text.
    """
    if not tokenizer.chat_template:
        return None
    turn = [Message("user", "?"), Message("assistant", PLACEHOLDER)]
    _, _, closing = _render(turn, tokenizer, opens_turn=False).rpartition(PLACEHOLDER)
    tokens = encode_text(closing.lstrip(), tokenizer)
    return tokens[0] if tokens and tokens[0] in tokenizer.added_tokens_decoder else None


def encode_reply(
    conversation: Sequence[Message],
    observation: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    last_token: int,
) -> list[int]:
    """Token ids that an environment's answer adds behind a completion of a chat.

    It is what the template puts between an assistant's text and the next one: the end of the turn
    (but for the stop token that the completion itself ended on), the answer as a user's message,
    the next opening. It is found by rendering; the completion is never tokenized again.

    Args:
        conversation: everything so far; the completion is its last message.
        observation: the answer.
        tokenizer: of the model.
        last_token: of the completion.

    Raises:
        DataError: the template rewrites earlier turns (as those do that drop the reasoning), so
            that what the policy has seen cannot be continued by appending.
    """
    *earlier, completion = conversation
    answer = Message("user", observation)
    seen = _render(earlier, tokenizer)
    whole = _render([*conversation, answer], tokenizer)
    marked = _render([*earlier, Message("assistant", PLACEHOLDER), answer], tokenizer)
    _, _, added = marked.rpartition(PLACEHOLDER)
    said = whole.removeprefix(seen).removesuffix(added)
    if seen + said + added != whole or said.strip() != completion.content.strip():
        raise DataError(
            "the model's chat template rewrites earlier turns; episodes of several turns need one "
            "that only appends"
        )
    stop = tokenizer.decode([last_token])
    assert isinstance(stop, str)
    if added.lstrip().startswith(stop):
        added = added.lstrip().removeprefix(stop)
    return encode_text(added, tokenizer)


def prompt_text(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """A prompt as the policy sees it, for people and rewards: messages as the template renders
    them, up to where the completion begins.

    Raises:
        DataError: as ``encode_prompt``.
    """
    return prompt if isinstance(prompt, str) else _render(prompt, tokenizer)


def _render(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, opens_turn: bool = True
) -> str:
    """A conversation as text with every special token in it, up to the policy's next turn."""
    if not tokenizer.chat_template:
        raise DataError(
            "the task's prompt is a chat, but the model's tokenizer has no chat template; "
            "use plain prompts or another model"
        )
    try:
        text = tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tokenize=False,
            add_generation_prompt=opens_turn,
        )
    except Exception as error:  # jinja2's own and whatever a template raises
        roles = ", ".join(message.role for message in messages)
        raise PromptRefused(
            f"the model's chat template refuses a conversation of {roles}: {error}"
        ) from error
    assert isinstance(text, str)
    return text


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
