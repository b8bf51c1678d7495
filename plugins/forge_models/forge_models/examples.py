"""Prompt and response of one demonstration as tokens: what is given and what is learned.

For a chat the model's own template says both. The prompt is what generation would see, up to the
generation prompt; learned is what the template's rendering of the whole chat has behind it, up to
the token that ends the turn. A text that the template never renders is never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_core import DataError, Message, Prompt
from forge_models.chat_template import Tools, check_nothing_lost, render, turn_end
from forge_models.prompts import encode_prompt, encode_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 60
"""Characters shown of a text that is wrong."""


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of one demonstration.

    Args:
        given: the prompt's, as generation would see them.
        learned: the response's that follow, with the token that ends it.
    """

    given: list[int]
    learned: list[int]


def encode_example(
    prompt: Prompt,
    response: str | Message,
    tokenizer: PreTrainedTokenizerBase,
    tools: Tools = (),
) -> Example:
    """Token ids of a prompt and of the response that is to follow it.

    A plain prompt and its response are tokenized apart, as at inference, where the prompt's tokens
    stand before the first one of the response is sampled.

    Args:
        prompt: plain text or messages.
        response: text, or the assistant's message for a chat.
        tokenizer: of the model.
        tools: of a chat, for its template.

    Raises:
        DataError: the prompt has no token, there is no token to end with, or for a chat: the
            template refuses it, leaves a part of it out, or renders the answered chat otherwise
            than the prompt for an answer.
    """
    if isinstance(prompt, str):
        given = encode_prompt(prompt, tokenizer, tools)
        learned = encode_text(_plain_text(response), tokenizer)
        learned.append(_end_of_sequence(tokenizer))
    else:
        given, learned = _chat(prompt, response, tokenizer, tools)
    if not given:
        raise DataError("the prompt has no token for a response to follow")
    return Example(given, learned)


def _chat(
    prompt: tuple[Message, ...],
    response: str | Message,
    tokenizer: PreTrainedTokenizerBase,
    tools: Tools,
) -> tuple[list[int], list[int]]:
    answer = Message("assistant", response) if isinstance(response, str) else response
    chat = (*prompt, answer)
    before = render(prompt, tokenizer, tools=tools)
    whole = render(chat, tokenizer, opens_turn=False, tools=tools)
    check_nothing_lost(chat, whole, tokenizer, opens_turn=False, tools=tools)
    if not whole.startswith(before):
        raise DataError(_difference(before, whole))
    _check_learned(answer, whole[len(before) :])
    end = turn_end(tokenizer)
    # Another end than usual: gpt-oss closes a tool call with <|call|>.
    text = whole.removesuffix(end.after) if whole.endswith(end.after) else whole.rstrip()
    given, tokens = encode_text(before, tokenizer), encode_text(text, tokenizer)
    if tokens[: len(given)] != given:
        # A token lies across the border ("\n" + "\n" is one in many vocabularies). Generation has
        # the prompt's own tokens before it, so these stay, as for a plain prompt.
        apart = [*given, *encode_text(text[len(before) :], tokenizer)]
        if tokenizer.decode(apart) != tokenizer.decode(tokens):
            raise DataError(
                "the tokenizer joins the end of the prompt with the response, "
                f"{before[-SHOWN:]!r} with {text[len(before) :][:SHOWN]!r}"
            )
        tokens = apart
    if end.token is None:
        tokens.append(_end_of_sequence(tokenizer))
    elif tokens[-1] not in tokenizer.added_tokens_decoder:
        raise DataError(
            "the model's chat template ends this response without an end-of-turn token: "
            f"...{text[-SHOWN:]!r}"
        )
    return given, tokens[len(given) :]


def _check_learned(answer: Message, learned: str) -> None:
    """The template may move and trim what the answer says, and must keep all of it."""
    for part in answer.content.replace("<think>", "</think>").split("</think>"):
        if part.strip() not in learned:
            raise DataError(
                "the model's chat template leaves out a part of the response: "
                f"{part.strip()[:SHOWN]!r}"
            )


def _difference(before: str, whole: str) -> str:
    """One line with both texts, from a little before where they part."""
    pairs = enumerate(zip(before, whole, strict=False))
    common = next((i for i, (a, b) in pairs if a != b), min(len(before), len(whole)))
    start = max(0, common - SHOWN // 3)
    return (
        "the model's chat template renders the answered chat otherwise than the prompt for an "
        "answer, so the model would learn a text that it is never prompted for: the prompt has "
        f"...{before[start : start + SHOWN]!r}, the whole chat "
        f"...{whole[start : start + SHOWN]!r}; give the row what the prompt opens (often "
        "reasoning_content), or change chat_template.jinja in the model's folder"
    )


def _plain_text(response: str | Message) -> str:
    if isinstance(response, str):
        return response
    if response.extra:
        keys = ", ".join(map(repr, response.extra))
        raise DataError(f"a plain prompt's response is text; {keys} needs a chat")
    return response.content


def _end_of_sequence(tokenizer: PreTrainedTokenizerBase) -> int:
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError("the model's tokenizer has no end-of-sequence token to learn to stop with")
    assert isinstance(end, int)
    return end
