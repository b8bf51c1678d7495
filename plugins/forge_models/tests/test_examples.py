"""Demonstrations as tokens: what is given and what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge_core import DataError, Message
from forge_models.examples import encode_example
from forge_models.prompts import encode_prompt
from forge_testing.byte_tokenizer import CHATML, byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from forge_core import Prompt

CHAT = (Message("system", "Be brief."), Message("user", "1+1?"))
NEWLINES = ("Ċ", "Ċ")
"""Two newlines are one token, as in most vocabularies (in the byte alphabet of GPT-2)."""

OPENS_THOUGHT = CHATML.replace(
    "{{ message.content }}",
    "{% if message.role == 'assistant' %}<think>\n{{ message.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ message.content }}",
).replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""As Qwen3.5's: the generation prompt opens a thought, a whole chat has it closed."""


def learned(prompt: Prompt, response: str | Message, tokenizer: PreTrainedTokenizerBase) -> str:
    example = encode_example(prompt, response, tokenizer)
    assert example.given == encode_prompt(prompt, tokenizer)
    text = tokenizer.decode(example.learned)
    assert isinstance(text, str)
    return text


def test_a_plain_response_ends_with_the_end_of_sequence() -> None:
    tokenizer = byte_tokenizer(bos="<s>", eos="</s>", appends_eos=True)
    assert learned("1+1=", "2", tokenizer) == "2</s>"


@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>"])
def test_a_chats_response_ends_as_the_template_ends_a_turn(eos: str) -> None:
    assert learned(CHAT, "2", byte_tokenizer(eos=eos)) == "2<|im_end|>"


def test_a_template_without_an_end_token_leaves_the_end_of_sequence() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    plain += "{% if add_generation_prompt %}assistant: {% endif %}"
    assert learned(CHAT, "2", byte_tokenizer(chat_template=plain, eos="</s>")) == "2</s>"


def test_a_tokenizer_without_any_end_cannot_be_taught_to_stop() -> None:
    tokenizer = byte_tokenizer(chat_template=None)
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="no end-of-sequence token to learn"):
        learned("1+1=", "2", tokenizer)


@pytest.mark.parametrize("merges", [[], [NEWLINES]], ids=["apart", "joined"])
def test_the_prompts_tokens_stay_where_the_response_would_join_them(
    merges: list[tuple[str, str]],
) -> None:
    tokenizer = byte_tokenizer(chat_template=OPENS_THOUGHT, merges=merges)
    # "<think>\n" + "\n</think>": the two newlines would be one token of the whole text, and
    # generation has the first of them in its prompt.
    assert learned(CHAT, "2", tokenizer) == "\n</think>\n\n2<|im_end|>"
    chatml = byte_tokenizer(merges=merges)
    assert learned(CHAT, "\n2", chatml) == "\n2<|im_end|>"


def test_tokens_behind_the_prompt_are_those_of_the_whole_text() -> None:
    tokenizer = byte_tokenizer(merges=[("2", "2")])
    example = encode_example(CHAT, "22", tokenizer)
    assert example.learned[0] == tokenizer.convert_tokens_to_ids("22")


def test_reasoning_is_learned_where_the_template_has_a_place_for_it() -> None:
    tokenizer = byte_tokenizer(chat_template=OPENS_THOUGHT)
    message = Message("assistant", "2", {"reasoning_content": "1 and 1"})
    assert learned(CHAT, message, tokenizer) == "1 and 1\n</think>\n\n2<|im_end|>"
    with pytest.raises(DataError, match=r"does not use 'reasoning_content' of messages\[2\]"):
        learned(CHAT, message, byte_tokenizer())
    with pytest.raises(DataError, match="a plain prompt's response is text; 'reasoning_content'"):
        learned("1+1=", message, tokenizer)


def test_a_prompt_that_the_answered_chat_does_not_continue_is_shown_with_it() -> None:
    never_closed = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    with pytest.raises(DataError, match="otherwise than the prompt") as caught:
        learned(CHAT, "It is 2.", byte_tokenizer(chat_template=never_closed))
    message = str(caught.value)
    assert r">assistant\n<think>\n', the whole chat" in message
    assert r">assistant\nIt is 2.<|im_end|>\n'" in message
    assert "\n" not in message


def test_a_thought_that_the_template_drops_is_an_error() -> None:
    drops = CHATML.replace("message.content", "message.content.split('</think>')[-1]")
    with pytest.raises(DataError, match="leaves out a part of the response: '1 and 1'"):
        learned(CHAT, "<think>1 and 1</think>2", byte_tokenizer(chat_template=drops))


def test_a_turn_without_its_end_is_an_error() -> None:
    forgets = CHATML.replace(
        "<|im_end|>\n{% endfor", "{{ '<|im_end|>\n' if message.content != '2' }}{% endfor"
    )
    with pytest.raises(DataError, match="ends this response without an end-of-turn token"):
        learned(CHAT, "2", byte_tokenizer(chat_template=forgets))


def test_nothing_to_follow_is_an_error() -> None:
    with pytest.raises(DataError, match="the prompt has no token"):
        learned("", "2", byte_tokenizer())
