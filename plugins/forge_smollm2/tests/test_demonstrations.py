"""Demonstrations in the tokens of a real vocabulary, where newlines and spaces join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge_core import Message
from forge_models.examples import encode_example
from forge_models.prompts import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = pytest.mark.real

CHAT = (Message("system", "Be brief."), Message("user", "1+1?"))


@pytest.mark.parametrize("answer", ["It is 2.", "It is 2.\n", "", "<b>2</b>", "zwei 🙂"])
def test_a_demonstration_has_the_tokens_of_the_rendered_chat(
    tokenizer: PreTrainedTokenizerBase, answer: str
) -> None:
    example = encode_example(CHAT, answer, tokenizer)
    chat = [{"role": m.role, "content": m.content} for m in (*CHAT, Message("assistant", answer))]
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    assert isinstance(whole, str)
    tokens = tokenizer.encode(whole.removesuffix("\n"), add_special_tokens=False)
    assert example.given + example.learned == tokens
    assert example.given == encode_prompt(CHAT, tokenizer)
    assert example.learned[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")


@pytest.mark.parametrize("answer", ["\n2", "\n\n  2", "  2"])
def test_a_token_across_the_border_leaves_the_prompt_as_generation_has_it(
    tokenizer: PreTrainedTokenizerBase, answer: str
) -> None:
    example = encode_example(CHAT, answer, tokenizer)
    assert example.given == encode_prompt(CHAT, tokenizer)
    assert tokenizer.decode(example.learned) == answer + "<|im_end|>"
