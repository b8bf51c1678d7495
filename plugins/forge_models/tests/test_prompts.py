"""Prompts and replies as tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge_core import DataError, Message
from forge_models.characters import character_tokenizer
from forge_models.chat_template import PLACEHOLDER
from forge_models.folder import load_tokenizer
from forge_models.prompts import (
    encode_prompt,
    encode_reply,
    encode_text,
    end_of_turn,
    prompt_text,
)
from forge_testing.byte_tokenizer import CHATML, byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT = (Message("system", "Be brief."), Message("user", "1+1?"))
RENDERED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
    "<|im_start|>assistant\n"
)

TRIMS = CHATML.replace("message.content", "message.content | trim")
"""As Llama's template does."""

FORGETS_REASONING = CHATML.replace(
    "message.content",
    "(message.content.split('</think>')[-1] if not loop.last else message.content)",
)
"""As templates of reasoning models do: what was thought in earlier turns is gone."""

FILLS_LAST_TURN = CHATML.replace(
    "{{ message.content }}",
    "{% if message.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message.content }}",
)
"""As Qwen3's does: the last assistant's turn is rendered otherwise than earlier ones."""

STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
)

IN_PARTS = CHATML.replace(
    "{{ message.content }}", "{% for part in message.content %}{{ part.text }}{% endfor %}"
)
"""As those of vision models do: a content is a list of parts, and text is dropped."""

SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
"""As Mistral's does: no generation prompt, and a space before the end of a turn."""


def decode(tokens: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    text = tokenizer.decode(tokens)
    assert isinstance(text, str)
    return text


# Prompts.


@pytest.mark.parametrize("text", ["1+1=", "", " ", "naïve 数学 🙂"])
def test_plain_text_is_its_tokens(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert decode(encode_prompt(text, tokenizer), tokenizer) == text


@pytest.mark.parametrize("text", ["1+1=", ""])
def test_plain_text_gets_the_tokenizers_first_token_and_not_its_last(text: str) -> None:
    tokenizer = byte_tokenizer(bos="<s>", eos="</s>", appends_eos=True)
    assert decode(encode_prompt(text, tokenizer), tokenizer) == "<s>" + text
    assert decode(encode_text(text, tokenizer), tokenizer) == text


def test_an_end_token_that_stands_in_the_text_stays() -> None:
    tokenizer = byte_tokenizer(bos="<s>", eos="</s>")
    assert decode(encode_prompt("a</s>", tokenizer), tokenizer) == "<s>a</s>"


def test_a_chat_is_rendered_up_to_the_policys_turn() -> None:
    tokenizer = byte_tokenizer(bos="<s>")
    tokens = encode_prompt(CHAT, tokenizer)
    assert decode(tokens, tokenizer) == RENDERED  # no <s>: the template says what comes first
    assert prompt_text(CHAT, tokenizer) == RENDERED
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") == tokens[0]


def test_a_chat_without_template_is_an_error() -> None:
    with pytest.raises(DataError, match="no chat template; use plain prompts"):
        encode_prompt(CHAT, byte_tokenizer(chat_template=None))


@pytest.mark.parametrize(
    ("template", "index", "role"),
    [
        (IN_PARTS, 0, "system"),
        ("{{ messages[-1].content }}", 0, "system"),
        ("{{ messages[0].content }}", 1, "user"),
    ],
)
def test_a_template_that_drops_a_message_is_an_error(template: str, index: int, role: str) -> None:
    tokenizer = byte_tokenizer(chat_template=template)
    expected = rf"does not use the content of messages\[{index}\] \({role}\)"
    with pytest.raises(DataError, match=expected):
        encode_prompt(CHAT, tokenizer)


@pytest.mark.parametrize("template", [TRIMS, CHATML.replace("content }}", "content | tojson }}")])
def test_a_template_may_trim_and_escape(template: str) -> None:
    tokenizer = byte_tokenizer(chat_template=template)
    encode_prompt((Message("user", ' "1+1"?\n'),), tokenizer)


def test_thoughts_of_earlier_turns_may_be_dropped() -> None:
    tokenizer = byte_tokenizer(chat_template=FORGETS_REASONING)
    chat = (*CHAT, Message("assistant", "<think>one and one</think>2"), Message("user", "Sure?"))
    assert "one and one" not in decode(encode_prompt(chat, tokenizer), tokenizer)


KNOWS = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    + CHATML.replace(
        "{{ message.content }}",
        "{% if message.thinking and loop.last %}<think>{{ message.thinking }}</think>{% endif %}"
        "{{ message.content }}{{ message.tool_calls[0] | tojson if message.tool_calls }}",
    )
)
"""Uses tools, the first tool call, and the thought of the last message."""

TOOLS = ({"type": "function", "function": {"name": "add"}},)


def call(*names: str) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": name, "arguments": {}}} for name in names]}


def test_what_the_template_knows_is_rendered() -> None:
    tokenizer = byte_tokenizer(chat_template=KNOWS)
    chat = (
        *CHAT,
        Message("assistant", "", call("add")),
        Message("tool", "2", {"tool_call_id": "1", "name": "add"}),
    )
    text = decode(encode_prompt(chat, tokenizer, TOOLS), tokenizer)
    assert text.startswith("<|im_start|>tools\n[")
    assert '"name": "add"' in text.split("assistant", 1)[1]
    assert text == prompt_text(chat, tokenizer, TOOLS)


def test_a_thought_that_is_used_in_the_last_message_may_be_dropped_in_earlier_ones() -> None:
    tokenizer = byte_tokenizer(chat_template=KNOWS)
    chat = (*CHAT, Message("assistant", "2", {"thinking": "one and one"}), *CHAT)
    assert "one and one" not in decode(encode_prompt(chat, tokenizer), tokenizer)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"reasoning_content": "one and one"}, r"'reasoning_content' of messages\[2\]"),
        ({"name": "ann"}, r"'name' of messages\[2\] \(assistant\)"),
        (call("add", "sub"), r"all of 'tool_calls' of messages\[2\]"),
    ],
)
def test_a_key_that_the_template_does_not_know_is_an_error(
    extra: dict[str, Any], expected: str
) -> None:
    tokenizer = byte_tokenizer(chat_template=KNOWS)
    chat = (*CHAT, Message("assistant", "2", extra), Message("user", "Sure?"))
    with pytest.raises(DataError, match="does not use " + expected):
        encode_prompt(chat, tokenizer)


def test_tools_that_would_not_be_rendered_are_an_error() -> None:
    with pytest.raises(DataError, match="does not use 'tools'"):
        encode_prompt(CHAT, byte_tokenizer(), TOOLS)
    with pytest.raises(DataError, match="a plain prompt has no place for tools"):
        encode_prompt("1+1=", byte_tokenizer(), TOOLS)


def test_a_template_that_refuses_is_quoted() -> None:
    tokenizer = byte_tokenizer(chat_template=STRICT)
    with pytest.raises(DataError, match="refuses a conversation of system, user: no system role"):
        encode_prompt(CHAT, tokenizer)


def test_text_without_tokens_is_shown() -> None:
    tokenizer = character_tokenizer("0123456789+=")
    with pytest.raises(DataError, match="cannot encode '1-1='"):
        encode_prompt("1-1=", tokenizer)
    with pytest.raises(DataError, match=r"cannot encode '1{57}\.\.\.'"):
        encode_text("1" * 90 + "x", tokenizer)


# The end of a turn.


@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>"])
def test_the_template_says_what_ends_a_turn(eos: str) -> None:
    tokenizer = byte_tokenizer(eos=eos)
    assert end_of_turn(tokenizer) == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_a_template_without_an_end_token_has_no_end_of_turn() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert end_of_turn(byte_tokenizer(chat_template=plain, eos="</s>")) is None


@pytest.mark.parametrize("template", [IN_PARTS, "{{ raise_exception('no') }}"])
def test_a_template_that_takes_no_plain_text_has_no_end_of_turn(template: str) -> None:
    # The first special token of the rendering was taken for it.
    assert end_of_turn(byte_tokenizer(chat_template=template)) is None


# Replies.


def conversation(completion: str) -> tuple[Message, ...]:
    return (*CHAT, Message("assistant", completion))


def reply(completion: str, tokenizer: PreTrainedTokenizerBase, *, stop: str = "<|im_end|>") -> str:
    """What is appended behind a completion, as text."""
    (last_token,) = encode_text(stop, tokenizer)
    tokens = encode_reply(
        conversation(completion), [Message("user", "Sure?")], tokenizer, last_token=last_token
    )
    return decode(tokens, tokenizer)


ANSWERS = ["2", "", "end", "im_end", "\n", " 2 ", "user", PLACEHOLDER, "Sure?", "<|im_end", "数"]
"""Texts that also occur in the template, in the answer to them, or that a template would trim."""


@pytest.mark.parametrize("completion", ANSWERS)
@pytest.mark.parametrize(
    "template", [CHATML, TRIMS, FILLS_LAST_TURN], ids=["CHATML", "TRIMS", "FILLS"]
)
def test_a_reply_closes_the_turn_and_opens_the_next(completion: str, template: str) -> None:
    tokenizer = byte_tokenizer(chat_template=template)
    opened = "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    # The completion's own stop token was the end of the turn.
    assert reply(completion, tokenizer) == opened


@pytest.mark.parametrize("completion", ANSWERS)
def test_prompt_completion_and_reply_are_the_template_of_the_whole(completion: str) -> None:
    tokenizer = byte_tokenizer()
    sampled = [*encode_text(completion, tokenizer), tokenizer.eos_token_id]
    spoken = conversation(completion)
    whole = encode_prompt((*spoken, Message("user", "Sure?")), tokenizer)
    appended = encode_reply(spoken, [Message("user", "Sure?")], tokenizer, last_token=sampled[-1])
    assert encode_prompt(CHAT, tokenizer) + sampled + appended == whole


def test_another_stop_token_does_not_close_the_turn() -> None:
    tokenizer = byte_tokenizer(eos="<|endoftext|>")
    expected = "<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    assert reply("2", tokenizer, stop="<|endoftext|>") == expected
    assert reply("2", tokenizer, stop="<|im_end|>") == expected.removeprefix("<|im_end|>")


def test_space_before_the_end_of_a_turn_is_no_reason_to_end_it_twice() -> None:
    tokenizer = byte_tokenizer(chat_template=SPACED, eos="</s>")
    spoken = (Message("user", "1+1?"), Message("assistant", "2"))
    (stop,) = encode_text("</s>", tokenizer)
    tokens = encode_reply(spoken, [Message("user", "Sure?")], tokenizer, last_token=stop)
    assert decode(tokens, tokenizer) == "[INST] Sure? [/INST]"


def test_a_template_that_forgets_reasoning_cannot_be_continued() -> None:
    tokenizer = byte_tokenizer(chat_template=FORGETS_REASONING)
    assert reply("2", tokenizer).endswith("<|im_start|>assistant\n")
    with pytest.raises(DataError, match="rewrites earlier turns"):
        reply("<think>one and one</think>2", tokenizer)


def test_a_template_that_rewrites_the_prompt_cannot_be_continued() -> None:
    counts = "{{ messages | length }} messages\n" + CHATML
    with pytest.raises(DataError, match="rewrites earlier turns"):
        reply("2", byte_tokenizer(chat_template=counts))


def test_a_saved_tokenizer_does_the_same(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert encode_prompt(CHAT, loaded) == encode_prompt(CHAT, tokenizer)
    assert end_of_turn(loaded) == tokenizer.eos_token_id
