"""Conversations as the model's chat template renders them, and what a template leaves out.

A template is a program that reads whatever keys it knows. What it does not know is gone without an
error, so this module compares: a key that changes nothing in the text was not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from forge_core import DataError, Message, PromptRefused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACEHOLDER = "@@completion@@"
"""Stands for a completion where only the template's text around it is wanted. A completion's own
text could be trimmed by the template, be empty, or occur in the template a second time."""

LINKS = frozenset({"id", "tool_call_id"})
"""Keys that only say which message belongs to which: nothing is lost where a template, like most,
relies on the order."""

Tools = Sequence[Mapping[str, Any]]


def render(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    *,
    opens_turn: bool = True,
    tools: Tools = (),
) -> str:
    """A conversation as text with every special token in it.

    Args:
        messages: in order.
        tokenizer: with the template.
        opens_turn: end with the generation prompt, which opens the assistant's next turn.
        tools: JSON schemas of functions.

    Raises:
        PromptRefused: the template refuses the conversation.
        DataError: there is no template.
    """
    if not tokenizer.chat_template:
        raise DataError(
            "the task's prompt is a chat, but the model's tokenizer has no chat template; "
            "use plain prompts or another model"
        )
    try:
        text = tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.content, **m.extra} for m in messages],
            tools=[dict(tool) for tool in tools] or None,
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


def check_nothing_lost(
    messages: Sequence[Message],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    opens_turn: bool = True,
    tools: Tools = (),
) -> None:
    """Make sure that everything a conversation says is in its rendering.

    Args:
        messages: the conversation.
        text: its rendering, with the same ``opens_turn`` and ``tools``.
        tokenizer: with the template.
        opens_turn: as for ``render``.
        tools: as for ``render``.

    Raises:
        PromptRefused: names the message and the key that the template does not use.
    """

    def again(changed: Sequence[Message], *, tools: Tools = tools) -> str | None:
        try:
            return render(changed, tokenizer, opens_turn=opens_turn, tools=tools)
        except DataError:
            return None  # what the template refuses, it has looked at

    if tools and again(messages, tools=()) == text:
        raise PromptRefused("the model's chat template does not use 'tools', so they would be lost")
    for index, message in enumerate(messages):
        where = f"of messages[{index}] ({message.role})"
        marked = [*messages[:index], replace(message, content=PLACEHOLDER), *messages[index + 1 :]]
        if not _says(message, text) and PLACEHOLDER not in (again(marked) or PLACEHOLDER):
            raise PromptRefused(
                f"the model's chat template does not use the content {where} as plain text, so it "
                "would be lost"
            )
        for key in message.extra:
            if key in LINKS or (key == "name" and message.role == "tool"):
                continue
            for less in _without(message, key):
                if again([*messages[:index], less, *messages[index + 1 :]]) != text:
                    continue
                # Reasoning of earlier turns is left out by design. It is used in the last one.
                upto = [*messages[:index], message]
                if index < len(messages) - 1 and _is_used(upto, less, tokenizer, tools):
                    continue
                part = f"all of {key!r}" if key in less.extra else repr(key)
                raise PromptRefused(
                    f"the model's chat template does not use {part} {where}, so it would be lost; "
                    "take it out of the data, or use a template that knows it"
                )


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How the template ends an assistant's turn.

    Args:
        closing: everything behind the content of a last message.
        after: the part of it behind the tokens that end the turn (ChatML's newline).
        token: the first of those tokens, None where the turn ends with ordinary text.
    """

    closing: str
    after: str
    token: int | None


def turn_end(tokenizer: PreTrainedTokenizerBase) -> TurnEnd:
    """How the tokenizer's chat template ends an assistant's turn.

    Raises:
        DataError: the template refuses a chat of one question and one answer, or does not use the
            answer's content.
    """
    return _turn_end(tokenizer, str(tokenizer.chat_template))


@lru_cache(maxsize=4)
def _turn_end(tokenizer: PreTrainedTokenizerBase, template: str) -> TurnEnd:
    turn = [Message("user", "?"), Message("assistant", PLACEHOLDER)]
    _, found, closing = render(turn, tokenizer, opens_turn=False).rpartition(PLACEHOLDER)
    if not found:
        raise DataError(
            "the model's chat template does not use the content of an assistant's message as plain "
            "text"
        )
    added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items()}
    any_added = "|".join(re.escape(text) for text in sorted(added, key=len, reverse=True))
    match = re.match(rf"\s*({any_added})(?:{any_added})*", closing) if added else None
    if match is None:
        return TurnEnd(closing, closing, None)
    return TurnEnd(closing, closing[match.end() :], added[match[1]])


def _says(message: Message, text: str) -> bool:
    """Whether the text has the message's content, but for space around it.

    What an assistant thought in an earlier turn is left out by design.
    """
    content = message.content
    if message.role == "assistant":
        content = content.rpartition("</think>")[2]
    return content.strip() in text


def _without(message: Message, key: str) -> list[Message]:
    """The message without a key, and without the last of several tool calls."""
    value = message.extra[key]
    less = [{name: given for name, given in message.extra.items() if name != key}]
    if key == "tool_calls" and len(value) > 1:
        less.append({**message.extra, key: value[:-1]})
    return [replace(message, extra=extra) for extra in less]


def _is_used(
    upto: Sequence[Message], less: Message, tokenizer: PreTrainedTokenizerBase, tools: Tools
) -> bool:
    """Whether the last message of a conversation is rendered otherwise with less in it."""
    try:
        whole = render(upto, tokenizer, opens_turn=False, tools=tools)
        return whole != render([*upto[:-1], less], tokenizer, opens_turn=False, tools=tools)
    except DataError:
        return True
